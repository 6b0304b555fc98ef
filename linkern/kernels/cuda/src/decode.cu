// One token of linear attention with scalar decay; the state is updated in place.
//
//     S = exp(g) S + k v^T        z = exp(g) z + k        o = q^T S / q^T z   or   s q^T S
//
// The kernel is bound by reading and writing the state once. A block of threads takes one
// head and kColumns columns of its state, 16 bytes to a thread, and issues the loads of all
// rows before it uses the first of them.
#include "common.cuh"

constexpr int kThreads = 128, kWarps = kThreads / 32, kColumns = 32;
template <class Real> constexpr int kLanes = kColumns / kVectorSize<Real>;  // threads of a row
template <class Real> constexpr int kRows = kThreads / kLanes<Real>;        // rows at a time

template <class Io, class Real> struct DecodeParams {
  Rows<const Io> query, key, value;  // one token
  Rows<const Real> log_decay;        // one number
  Rows<Io> output;
  Real* state;       // (B H, K, pitch)
  Real* normalizer;  // (B H, slices, K): one copy for each block, all equal
  Sizes sizes;
  int pitch;  // columns of the state with padding: a multiple of kVectorSize
  Real scale;
};

template <class Real, int Features> struct DecodeStorage {
  Real query[Features], key[Features];
  Real output[kWarps][kColumns], weight[kWarps];
};

// The rows of a panel of the state that a thread holds: thread / kLanes, then every kRows-th.
template <class Real, int Held> struct StatePanel {
  using Columns = Vector<Real, kVectorSize<Real>>;
  Columns rows[Held];

  // Rows from `count` on stay zero.
  DEVICE void load(const Real* state, int pitch, int count) {
    const int first = threadIdx.x / kLanes<Real>;
#pragma unroll
    for (int i = 0; i < Held; i++) {
      const int row = first + i * kRows<Real>;
      rows[i] = Columns();
      if (row < count) rows[i] = *reinterpret_cast<const Columns*>(state + i64(row) * pitch);
    }
  }
  // Updates and stores the state, and adds q^T S to the output.
  DEVICE void step(Real* state, int pitch, int count, const Real* query, const Real* key,
                   const Columns& value, Real decay, Columns& output) {
    const int first = threadIdx.x / kLanes<Real>;
#pragma unroll
    for (int i = 0; i < Held; i++) {
      const int row = first + i * kRows<Real>;
      if (row >= count) continue;
      const Real q = query[row], k = key[row];
#pragma unroll
      for (int c = 0; c < kVectorSize<Real>; c++) {
        rows[i].entries[c] = decay * rows[i].entries[c] + k * value.entries[c];
        output.entries[c] += q * rows[i].entries[c];
      }
      *reinterpret_cast<Columns*>(state + i64(row) * pitch) = rows[i];
    }
  }
};

template <class Io, class Real, int Map, bool Decay, bool Normalize, int Held>
__global__ void __launch_bounds__(kThreads, 3) decode(DecodeParams<Io, Real> params) {
  constexpr int kFeatures = Held * kRows<Real>;
  SHARED_MEMORY(bytes);
  auto& storage = *reinterpret_cast<DecodeStorage<Real, kFeatures>*>(bytes);
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int features = params.sizes.features, values = params.sizes.values;
  const int slices = max(1, (values + kColumns - 1) / kColumns);
  const int slice = int(blockIdx.x % slices);
  const int first_column = thread % kLanes<Real> * kVectorSize<Real>;
  const int column = slice * kColumns + first_column;
  const i64 head = blockIdx.x / slices;
  const i64 in_batch = head / params.sizes.heads, in_head = head % params.sizes.heads;
  const Io* query = params.query.at_head(in_batch, in_head);
  const Io* key = params.key.at_head(in_batch, in_head);
  const Io* value_row = params.value.at_head(in_batch, in_head);
  Real* state = params.state + head * features * params.pitch + column;
  Real* normalizer = !Normalize ? nullptr : params.normalizer + blockIdx.x * i64(features);
  const Real decay = !Decay ? Real(1) : exp(*params.log_decay.at_head(in_batch, in_head));

  Vector<Real, kVectorSize<Real>> value = {}, output = {};
#pragma unroll
  for (int c = 0; c < kVectorSize<Real>; c++)
    if (column + c < values) value.entries[c] = Real(widen(value_row[column + c]));

  Real weight = 0;
  for (int start = 0; start < features; start += kFeatures) {
    const int count = min(features - start, kFeatures);
    const int rows = column < params.pitch ? count : 0;
    Real* panel_state = state + i64(start) * params.pitch;
    StatePanel<Real, Held> panel;
    panel.load(panel_state, params.pitch, rows);
    for (int k = thread; k < count; k += kThreads) {
      const Real mapped_query = apply_map<Map>(Real(widen(query[start + k])));
      const Real mapped_key = apply_map<Map>(Real(widen(key[start + k])));
      storage.query[k] = mapped_query;
      storage.key[k] = mapped_key;
      if (Normalize) {
        const Real sum = decay * normalizer[start + k] + mapped_key;
        normalizer[start + k] = sum;
        weight += mapped_query * sum;
      }
    }
    // All loads of the state are issued before this barrier, all stores follow it.
    __syncthreads();
    panel.step(panel_state, params.pitch, rows, storage.query, storage.key, value, decay,
               output);
    __syncthreads();  // the features may be overwritten
  }

  // Sums over the lanes of a warp, then over the warps in order.
#pragma unroll
  for (int distance = kLanes<Real>; distance < 32; distance *= 2)
#pragma unroll
    for (int c = 0; c < kVectorSize<Real>; c++)
      output.entries[c] += __shfl_xor_sync(~0u, output.entries[c], distance);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    weight += __shfl_xor_sync(~0u, weight, distance);
  if (lane < kLanes<Real>)
    for (int c = 0; c < kVectorSize<Real>; c++)
      storage.output[warp][first_column + c] = output.entries[c];
  if (lane == 0) storage.weight[warp] = weight;
  __syncthreads();
  const int written = slice * kColumns + thread;
  if (thread >= kColumns || written >= values) return;
  Real sum = 0, total = 0;
  for (int i = 0; i < kWarps; i++) {
    sum += storage.output[i][thread];
    total += storage.weight[i];
  }
  store_rounded(params.output.at_head(in_batch, in_head) + written,
                Normalize ? sum / total : params.scale * sum);
}
