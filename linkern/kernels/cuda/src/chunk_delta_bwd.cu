// Gradients of the (gated) delta rule, chunkwise on tensor cores, in three launches.
//
//     1. chunk_delta_states, forward: S before each chunk, and U.
//     2. chunk_delta_reverse, backward: R after each chunk, the gradient of S there, and Z,
//        the gradient of what a token writes before beta; dV = b Z (delta_kept.cuh).
//     3. chunk_delta_grads, all chunks at once, with D the gradient of the output and the
//        decays Gamma_ij from token j to i, e_i from the start of the chunk and f_j to its end:
//
//     A = s Gamma * D U^T for j <= i        dQ = s e D S^T + A K
//     B = -b Gamma * Z U^T for j < i        dK = -b e Z S^T + f U R^T + (B + B^T) K + A^T Q
//     db_i = z_i^T (v_i - e_i S^T k_i - sum of Gamma_ij k_i^T k_j u_j)
//
// That of a log-decay is the sum of all shares of the result that pass it (decay_grad.cuh).
// Nothing is subtracted or divided by a decay or by beta. Traffic: rows and gradients once or
// twice, four times V numbers of float32 a token, and four times K V numbers a chunk.
#include "delta_block.cuh"
#include "delta_grad_tile.cuh"
#include "delta_kept.cuh"

template <class Shape, bool Decay>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    chunk_delta_states(DeltaKeptParams<typename Split<typename Shape::Io>::Stored> params) {
  SHARED_MEMORY(bytes);
  process_head<Shape, Decay, DeltaKeptColumns<Shape, Decay>>(params, bytes);
}

template <class Shape, bool Decay>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    chunk_delta_reverse(DeltaKeptParams<typename Split<typename Shape::Io>::Stored> params) {
  SHARED_MEMORY(bytes);
  process_head<Shape, Decay, DeltaReverseColumns<Shape, Decay>>(params, bytes);
}

// The block of threads of one chunk of a head.
template <class Shape, bool Decay> struct DeltaGradBlock {
  typedef typename Split<typename Shape::Io>::Stored Stored;
  typedef DeltaGradParams<Stored> Params;
  const Params& params;
  DeltaGradStorage<Shape>& storage;
  const i64 chunks, head, number, in_batch, in_head, first;
  const int count, features = params.sizes.features, values = params.sizes.values;

  DEVICE DeltaGradBlock(const Params& params, DeltaGradStorage<Shape>& storage)
      : params(params), storage(storage),
        chunks((params.sizes.tokens + Shape::kTokens - 1) / Shape::kTokens),
        head(blockIdx.x / chunks), number(blockIdx.x % chunks),
        in_batch(head / params.sizes.heads), in_head(head % params.sizes.heads),
        first(number * Shape::kTokens),
        count(int(params.sizes.tokens - first < Shape::kTokens ? params.sizes.tokens - first
                                                               : Shape::kTokens)) {}

  template <class T> DEVICE T* rows(const Rows<T>& all) const {
    return all.at_head(in_batch, in_head) + first * all.token_stride;
  }

  // Starts to copy what is needed once, and stores the gates.
  DEVICE void copy_rows() {
    storage.queries.copy(rows(params.query), params.query.token_stride, count, features);
    storage.keys.copy(rows(params.key), params.key.token_stride, count, features);
    const int token = threadIdx.x;
    LoadedGate<Stored, float> gate;
    if (Decay) {
      if (token < count)
        gate.load(Gates<Stored, float>(params.log_decay, in_batch, in_head, first), token, 0);
      const float log_decay = gate.widened(params.log_decay.narrow);
      if (token / 32 * 32 < Shape::kTokens) storage.decays.compute(log_decay, token);
    }
    if (token >= Shape::kTokens) return;
    storage.beta[token] = 1.0f;
    if (params.beta.data == nullptr || token >= count) return;
    gate.load(Gates<Stored, float>(params.beta, in_batch, in_head, first), token, 0);
    storage.beta[token] = gate.widened(params.beta.narrow);
  }

  // Starts to copy a panel of the columns.
  DEVICE void copy_panel(int column) {
    const int columns = values - column;
    const i64 offset = (head * params.sizes.tokens + first) * values + column;
    const i64 edge = (head * (chunks + 1) + number) * features * values + column;
    const i64 next = i64(features) * values;
    storage.values.copy(rows(params.value) + column, params.value.token_stride, count, columns);
    storage.output_grads.copy(rows(params.output_grad) + column,
                              params.output_grad.token_stride, count, columns);
    storage.written.copy(params.written + offset, values, count, columns);
    storage.written_grads.copy(params.written_grads + offset, values, count, columns);
    storage.state.copy(params.states + edge, values, features, columns);
    storage.state_grad.copy(params.state_grads + edge + next, values, features, columns);
    cp_async_commit();
  }
  DEVICE void convert_panel(int column) {
    const int columns = values - column;
    storage.values.convert(count, columns);
    storage.output_grads.convert(count, columns);
    storage.written.convert(count, columns);
    storage.written_grads.convert(count, columns);
    storage.state.convert(features, columns);
    storage.state_grad.convert(features, columns);
  }

  DEVICE void run() {
    DeltaGradTile<Shape, Decay> grads(storage, threadIdx.x / 32, count);
    copy_rows();
    for (int column = 0; column < values; column += Shape::kColumns) {
      copy_panel(column);
      cp_async_wait<0>();
      if (column == 0) storage.queries.convert(count, features);
      if (column == 0) storage.keys.convert(count, features);
      convert_panel(column);
      __syncthreads();  // the panel is complete
      grads.add_panel();
      __syncthreads();  // it may be overwritten
    }
    grads.store_scores(params.scale);
    __syncthreads();  // the gradients of scores are complete
    grads.compute_dq(rows(params.query_grad), params.query_grad.token_stride, features);
    grads.compute_dk(rows(params.key_grad), params.key_grad.token_stride, features);
    if (Decay) store_decay_grads();
    const int token = threadIdx.x;
    if (params.beta_grad.data != nullptr && token < count)
      rows(params.beta_grad)[token * params.beta_grad.token_stride] = sums_of(token).y;
  }
  DEVICE void store_decay_grads() {
    const int token = threadIdx.x;
    if (token < Shape::kTokens) storage.decay_grad.from_state[token] = sums_of(token).x;
    __syncthreads();  // the shares of all tokens are complete
    storage.decay_grad.store(rows(params.log_decay_grad), params.log_decay_grad.token_stride,
                             count);
  }
  // Sums over the slices of the features.
  DEVICE float2 sums_of(int token) const {
    float2 sums = make_float2(0, 0);
#pragma unroll
    for (int slice = 0; slice < storage.kSlices; slice++) {
      const float2 more = load_shared(&storage.row_sums[slice][token]);
      sums.x += more.x, sums.y += more.y;
    }
    return sums;
  }
};

// Blocks of a multiprocessor: two, where threads of them have enough registers.
template <class Shape>
constexpr int kGradBlocks = Shape::kThreads > 256 ||
                                    (Split<typename Shape::Io>::kParts > 1 &&
                                     Shape::kFeatures > 64)
                                ? 1
                                : 2;

template <class Shape, bool Decay>
__global__ void __launch_bounds__(Shape::kThreads, kGradBlocks<Shape>)
    chunk_delta_grads(DeltaGradParams<typename Split<typename Shape::Io>::Stored> params) {
  SHARED_MEMORY(bytes);
  DeltaGradBlock<Shape, Decay>(params, *reinterpret_cast<DeltaGradStorage<Shape>*>(bytes)).run();
}
