// One token of what is only added to the memory, which is updated where it lies.
//
//     S = exp(g) S + k v^T        z = exp(g) z + k        o = q^T S / q^T z   or   s q^T S
//
// There is little to compute: a step takes the time in which the memory is read and written
// once. A block of threads takes one head and kColumns of its columns, 16 bytes to a thread,
// and has all rows under way before it needs the first of them.
#include "common.cuh"

constexpr int kThreads = 128, kWarps = kThreads / 32, kColumns = 32;
template <class Real> constexpr int kWide = 16 / int(sizeof(Real));  // numbers in 16 bytes
template <class Real> constexpr int kLanes = kColumns / kWide<Real>;  // threads of a row
template <class Real> constexpr int kRows = kThreads / kLanes<Real>;  // rows at a time

// Numbers that are loaded and stored at once.
template <class Real> struct __align__(16) Together {
  Real at[kWide<Real>];
};

template <class Io, class Real> struct Step {
  Rows<const Io> query, key, value;  // of one token
  Rows<const Real> log_decay;        // one number
  Rows<Io> output;
  Real* memory;      // (B H, K, pitch)
  Real* normalizer;  // (B H, slices, K): each block has one of its own, all are the same
  Sizes sizes;
  int pitch;  // columns of the memory, with spare ones: a multiple of kWide
  Real scale;
};

template <class Real, int Features> struct Shared {
  Real query[Features], key[Features];
  Real found[kWarps][kColumns], weight[kWarps];
};

// The rows of one panel that a thread holds: thread / kLanes, and every kRows behind it.
template <class Real, int Held> struct Panel {
  using Columns = Together<Real>;
  Columns rows[Held];

  // `count` rows are left; those that are not there stay zero.
  DEVICE void load(const Real* memory, int pitch, int count) {
    const int first = threadIdx.x / kLanes<Real>;
#pragma unroll
    for (int i = 0; i < Held; i++) {
      const int row = first + i * kRows<Real>;
      rows[i] = Columns();
      if (row < count) rows[i] = *reinterpret_cast<const Columns*>(memory + i64(row) * pitch);
    }
  }
  // Takes the token in, and adds what its query reads.
  DEVICE void step(Real* memory, int pitch, int count, const Real* query, const Real* key,
                   const Columns& value, Real left, Columns& found) {
    const int first = threadIdx.x / kLanes<Real>;
#pragma unroll
    for (int i = 0; i < Held; i++) {
      const int row = first + i * kRows<Real>;
      if (row >= count) continue;
      const Real weight = query[row], written = key[row];
#pragma unroll
      for (int c = 0; c < kWide<Real>; c++) {
        rows[i].at[c] = left * rows[i].at[c] + written * value.at[c];
        found.at[c] += weight * rows[i].at[c];
      }
      *reinterpret_cast<Columns*>(memory + i64(row) * pitch) = rows[i];
    }
  }
};

template <class Io, class Real, int Map, bool Decay, bool Normalize, int Held>
__global__ void __launch_bounds__(kThreads, 3) decode_step(Step<Io, Real> of) {
  constexpr int kFeatures = Held * kRows<Real>;
  SHARED_MEMORY(memory_of_block);
  auto& shared = *reinterpret_cast<Shared<Real, kFeatures>*>(memory_of_block);
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int features = of.sizes.features, values = of.sizes.values;
  const int slices = max(1, (values + kColumns - 1) / kColumns);
  const int slice = int(blockIdx.x % slices), own = thread % kLanes<Real> * kWide<Real>;
  const int column = slice * kColumns + own;
  const i64 head = blockIdx.x / slices;
  const i64 in_batch = head / of.sizes.heads, in_head = head % of.sizes.heads;
  const Io* query = of.query.of(in_batch, in_head);
  const Io* key = of.key.of(in_batch, in_head);
  const Io* values_of_token = of.value.of(in_batch, in_head);
  Real* memory = of.memory + head * features * of.pitch + column;
  Real* normalizer = !Normalize ? nullptr : of.normalizer + blockIdx.x * i64(features);
  const Real left = !Decay ? Real(1) : exp(*of.log_decay.of(in_batch, in_head));

  Together<Real> value = {}, found = {};
#pragma unroll
  for (int c = 0; c < kWide<Real>; c++)
    if (column + c < values) value.at[c] = Real(wide(values_of_token[column + c]));

  Real weight = 0;
  for (int start = 0; start < features; start += kFeatures) {
    const int count = min(features - start, kFeatures);
    const int rows = column < of.pitch ? count : 0;
    Real* place = memory + i64(start) * of.pitch;
    Panel<Real, Held> panel;
    panel.load(place, of.pitch, rows);
    for (int k = thread; k < count; k += kThreads) {
      const Real read = feature<Map>(Real(wide(query[start + k])));
      const Real written = feature<Map>(Real(wide(key[start + k])));
      shared.query[k] = read;
      shared.key[k] = written;
      if (Normalize) {
        const Real sum = left * normalizer[start + k] + written;
        normalizer[start + k] = sum;
        weight += read * sum;
      }
    }
    // No load of the memory passes this, and no store comes before it.
    __syncthreads();
    panel.step(place, of.pitch, rows, shared.query, shared.key, value, left, found);
    __syncthreads();  // before the features are overwritten
  }

  // Over the rows of a warp, then over the warps in their order.
#pragma unroll
  for (int apart = kLanes<Real>; apart < 32; apart *= 2)
#pragma unroll
    for (int c = 0; c < kWide<Real>; c++)
      found.at[c] += __shfl_xor_sync(~0u, found.at[c], apart);
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) weight += __shfl_xor_sync(~0u, weight, apart);
  if (lane < kLanes<Real>)
    for (int c = 0; c < kWide<Real>; c++) shared.found[warp][own + c] = found.at[c];
  if (lane == 0) shared.weight[warp] = weight;
  __syncthreads();
  const int written = slice * kColumns + thread;
  if (thread >= kColumns || written >= values) return;
  Real sum = 0, total = 0;
  for (int i = 0; i < kWarps; i++) {
    sum += shared.found[i][thread];
    total += shared.weight[i];
  }
  put(of.output.of(in_batch, in_head) + written, Normalize ? sum / total : of.scale * sum);
}
