// Chunkwise backward of linear attention with scalar decay, on tensor cores.
//
// For a chunk let P be the masked and decayed scores, S the state before it, R the gradient
// of the state after it, z and r their normalizers, Q and F the features, u the weights of
// the rows; and e, l and w the decays from the start of the chunk to each query, from each
// key to the end of the chunk, and of the whole chunk:
//
//     D  = dO / u  or  s dO        dQ = e (D S^T + d z^T) + A F
//     A  = decay * (D V^T + d)     dF = l (V R^T + 1 r^T) + A^T Q
//     d  = -D . (e Q S + P V) / u  dV = l F R + P^T D
//     or 0                         R <- w R + (e Q)^T D,  r <- w r + (e Q)^T d
//
// A block of threads processes the segments of one head, or of a group of segments, in
// reverse. For each segment it recomputes the chunk states from the segment's checkpoint and
// stores them in operand format; the backward pass reads them back, mostly from L2. Nothing
// is subtracted or divided by a decay. Traffic: every input and gradient once, keys and
// values two more times (one of them in the forward pass), and K V numbers per segment.
//
// If there are few heads, a first launch computes the contribution of each group to R from
// zero, state_passing scans these in reverse, and a second launch computes the gradients of
// all groups at once.
//
// The output e Q S + P V is not recomputed: D . (e Q S + P V) is the sum of Q . e D S^T and
// of all P_ij (D V^T)_ij, which are available. D itself is never rounded: products with dO
// are divided by u afterwards.
#include "grad_tile.cuh"

// The block of threads of one group of segments.
template <class Shape, int Map, bool Decay, bool Normalize> struct ChunkBwd {
  typedef typename Shape::Io Io;
  typedef typename Split<Io>::Stored Stored;
  typedef ChunkTiles<Shape, true> Chunk;
  typedef StateAccumulator<Shape, Decay, Normalize> State;
  const ChunkBwdParams<Stored>& params;
  BwdStorage<Shape>& storage;
  const i64 line, head, in_batch, in_head;  // line: index among the groups of all heads
  const int warp = threadIdx.x / 32;
  const int features = params.sizes.features, values = params.sizes.values;
  const bool has_state = warp < Shape::kStateWarps;
  i64 first = 0, tokens = 0;  // of the segment
  float log_decay = 0;        // of this thread's token of the chunk that is being copied
  float decay_total = 1;      // product of the decays of the group

  DEVICE ChunkBwd(const ChunkBwdParams<Stored>& params, BwdStorage<Shape>& storage, i64 line)
      : params(params), storage(storage), line(line), head(line / params.groups),
        in_batch(head / params.sizes.heads), in_head(head % params.sizes.heads) {}

  template <class T> DEVICE T* rows(const Rows<T>& all, i64 number) const {
    return all.at_head(in_batch, in_head) +
           (first + number * Shape::kTokens) * all.token_stride;
  }
  DEVICE Chunk chunk_at(i64 number) const {
    return Chunk(storage.rows, number, tokens - number * Shape::kTokens);
  }
  DEVICE unsigned char* chunk_state(i64 number) const {
    const i64 chunks = params.segment_tokens / Shape::kTokens;
    return params.chunk_states + (line * chunks + number) * i64(sizeof(StateTile<Shape>));
  }

  // Starts to copy the rows of a chunk: all of them, or keys and values only.
  DEVICE void copy(i64 number, bool all) {
    const Chunk to = chunk_at(number);
    to.staged_keys().copy(rows(params.key, number), params.key.token_stride, to.count,
                          features);
    to.staged_values().copy(rows(params.value, number), params.value.token_stride, to.count,
                            values);
    if (all) {
      to.staged_queries().copy(rows(params.query, number), params.query.token_stride,
                               to.count, features);
      to.staged_output_grads().copy(rows(params.output_grad, number),
                                    params.output_grad.token_stride, to.count, values);
    }
    cp_async_commit();
    if (!Decay) return;
    const int token = threadIdx.x;
    log_decay = token < to.count
                    ? rows(params.log_decay, number)[token * params.log_decay.token_stride]
                    : 0.0f;
  }
  // Waits for what this thread has copied, converts it, and computes the decays.
  DEVICE void wait_and_convert(const Chunk& chunk, bool all) const {
    cp_async_wait<0>();
    const bool splits = Chunk::kSplits, changes = splits || Map != IDENTITY;
    const int count = chunk.count;
    if (changes) chunk.staged_keys().template convert<Map>(chunk.keys(), count, features);
    if (splits)
      chunk.staged_values().template convert<IDENTITY>(chunk.values(), count, values);
    if (all && changes)
      chunk.staged_queries().template convert<Map>(chunk.queries(), count, features);
    if (all && splits)
      chunk.staged_output_grads().template convert<IDENTITY>(chunk.output_grads(), count,
                                                             values);
    if (Decay && threadIdx.x / 32 * 32 < Shape::kTokens)
      storage.decays.compute(log_decay, threadIdx.x);
  }

  DEVICE static void store_smem(const State& state, StateTile<Shape>& target) {
    state.store_smem(target.matrix(), 1.0f);
    state.store_normalizer(target.normalizer);
  }

  // Recomputes the states before all chunks of a segment from its checkpoint and stores
  // them; the last one stays in shared memory, while the rows of that chunk are copied.
  DEVICE void recompute_states(i64 segment) {
    first = segment * params.segment_tokens;
    const i64 remaining = params.sizes.tokens - first;
    tokens = remaining < params.segment_tokens ? remaining : params.segment_tokens;
    const i64 last = (tokens - 1) / Shape::kTokens;
    const i64 checkpoint = head * params.segments + segment;
    const i64 offset = checkpoint * features * values;
    const i64 normalizer_offset = checkpoint * features;
    State state(warp);
    if (has_state)
      state.load(params.checkpoints ? params.checkpoints + offset : nullptr,
                 params.checkpoint_normalizers
                     ? params.checkpoint_normalizers + normalizer_offset
                     : nullptr,
                 features, values, values);
    copy(0, last == 0);
    for (i64 number = 0;; number++) {
      const Chunk chunk = chunk_at(number);
      if (has_state) store_smem(state, storage.state);
      if (number < last) {
        wait_and_convert(chunk, false);
        copy(number + 1, number + 1 == last);
      }
      __syncthreads();  // the chunk and the state before it are in shared memory
      if (number == last) break;
      storage.state.store_global(chunk_state(number));
      if (has_state) state.add_chunk(chunk, storage.decays);
      __syncthreads();  // both may be overwritten
    }
  }

  // Computes all gradients of the segment, from its last chunk to its first.
  DEVICE void backward_segment(bool from_zero) {
    const auto &d_query = params.query_grad, &d_key = params.key_grad;
    const auto& d_value = params.value_grad;
    const i64 offset = line * features * values, normalizer_offset = line * features;
    float* const dnormalizer = Normalize ? params.dnormalizer + normalizer_offset : nullptr;
    State dstate(warp);
    if (has_state && !from_zero)
      dstate.load(params.dstate + offset, dnormalizer, features, values, values);
    for (i64 number = (tokens - 1) / Shape::kTokens; number >= 0; number--) {
      const Chunk chunk = chunk_at(number);
      wait_and_convert(chunk, true);
      if (number > 0) copy(number - 1, true);
      if (has_state) store_smem(dstate, storage.dstate);
      __syncthreads();  // the chunk, its state and dstate are in shared memory
      GradTile<Shape, Map, Decay, Normalize> grads(storage, chunk, warp);
      grads.store_row_sums();
      if (Decay && params.all_gradients) store_state_decay_grad(dstate);
      if (Decay || Normalize) __syncthreads();  // the row sums are complete
      grads.compute_row_factors(params.scale);
      if (params.all_gradients) grads.store_scores();
      __syncthreads();  // the scores are complete; the state may be overwritten
      if (number > 0) storage.state.load_global_async(chunk_state(number - 1));
      if (params.all_gradients) {
        grads.compute_dq(rows(d_query, number), d_query.token_stride, features);
        grads.compute_dk(rows(d_key, number), d_key.token_stride, features);
        grads.compute_dv(rows(d_value, number), d_value.token_stride, values);
      }
      if (has_state) update_dstate(dstate, chunk);
      __syncthreads();  // the chunk may be overwritten; decay_grad is complete
      if (Decay && params.all_gradients)
        storage.decay_grad.store(rows(params.log_decay_grad, number),
                                 params.log_decay_grad.token_stride, chunk.count);
    }
    if (has_state) dstate.store(params.dstate + offset, dnormalizer, features, values, values);
  }

  // Stores the share of the result that the state after the chunk owes to that before it.
  DEVICE void store_state_decay_grad(const State& dstate) {
    float sum = 0;
    if (has_state) {
#pragma unroll
      for (int i = 0; i < Shape::kStateRowBlocks * Shape::kStateColumnBlocks; i++) {
        const int k = i / Shape::kStateColumnBlocks, n = i % Shape::kStateColumnBlocks;
        const OperandFragment<Io> state =
            storage.state.matrix().left(dstate.row + 16 * k, dstate.column + 16 * n);
#pragma unroll
        for (int r = 0; r < 4; r++) {
          const Accumulator& block = dstate.state[k][n];
          sum += state.pair(r).first() * block.entry(r % 2, r / 2, 0) +
                 state.pair(r).second() * block.entry(r % 2, r / 2, 1);
        }
      }
      if (Normalize && dstate.column == 0 && dstate.pair == 0)
#pragma unroll
        for (int i = 0; i < 2 * Shape::kStateRowBlocks; i++) {
          const int k = dstate.row + i / 2 * 16 + dstate.group + i % 2 * 8;
          sum += storage.state.normalizer[k] * dstate.normalizer[i / 2][i % 2 * 2];
        }
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      sum += __shfl_xor_sync(kAllLanes, sum, distance);
    if (lane_id() == 0) storage.decay_grad.across[warp] = chunk_decay() * sum;
  }
  DEVICE float chunk_decay() const {
    return Decay ? storage.decays.between(-1, Shape::kTiles) : 1.0f;
  }

  // R <- w R + (e Q)^T D and r <- w r + (e Q)^T d
  DEVICE void update_dstate(State& dstate, const Chunk& chunk) {
    constexpr int kRowBlocks = Shape::kStateRowBlocks;
    constexpr int kColumnBlocks = Shape::kStateColumnBlocks;
    Accumulator added[kRowBlocks][kColumnBlocks] = {};
    float row_sums[kRowBlocks][4] = {};
#pragma unroll 1
    for (int tile = 0; tile < Shape::kTiles; tile++) {
      OperandFragment<Io> queries[kRowBlocks];
#pragma unroll
      for (int k = 0; k < kRowBlocks; k++) {
        queries[k] = chunk.queries().transposed_left(16 * tile, dstate.row + 16 * k);
        if (Normalize) {
          OperandFragment<Io> weighted = queries[k];
          dstate.scale_tokens(weighted, storage.query_shifts + 16 * tile, 1.0f);
          mma_row_sums(row_sums[k], weighted);
        }
        dstate.scale_tokens(queries[k], storage.query_factors + 16 * tile, 1.0f);
      }
#pragma unroll
      for (int n = 0; n < kColumnBlocks; n++) {
        const OperandFragment<Io> output_grads =
            chunk.output_grads().right(16 * tile, dstate.column + 16 * n);
#pragma unroll
        for (int k = 0; k < kRowBlocks; k++) mma(added[k][n], queries[k], output_grads);
      }
    }
    dstate.decay_add(chunk_decay(), added, row_sums);
    decay_total *= chunk_decay();
  }
};

template <class Shape, int Map, bool Decay, bool Normalize>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    chunk_bwd(ChunkBwdParams<typename Split<typename Shape::Io>::Stored> params) {
  SHARED_MEMORY(bytes);
  BwdStorage<Shape>& storage = *reinterpret_cast<BwdStorage<Shape>*>(bytes);
  ChunkBwd<Shape, Map, Decay, Normalize> block(params, storage, i64(blockIdx.x));
  const i64 first = block.line % params.groups * params.group_segments;
  const i64 end = first + params.group_segments;
  const i64 last = (end < params.segments ? end : params.segments) - 1;
  if (!params.all_gradients && first == 0) return;  // its contribution is not needed
  for (i64 segment = last; segment >= first; segment--) {
    block.recompute_states(segment);
    block.backward_segment(!params.all_gradients && segment == last);
  }
  if (!params.all_gradients && threadIdx.x == 0)
    params.decay_total[block.line] = block.decay_total;
}
