// Chunkwise forward of linear attention with scalar decay, on tensor cores.
//
//     S_i = exp(g_i) S_(i-1) + k_i v_i^T        o_i = q_i^T S_i / q_i^T z_i
//     z_i = exp(g_i) z_(i-1) + k_i              or s q_i^T S_i
//
// A block of threads processes the chunks of one head, or of one segment of it, for a slice
// of the columns of the values. The state stays in registers (`StateAccumulator`). In each
// chunk the warps first compute the output (`OutputTile`) and then update the state, while
// the next chunk is copied.
//
// Masked scores are multiplied with values as zeros, so an infinite value reaches earlier
// tokens of its own tile.
#include "output_tile.cuh"
#include "state_accumulator.cuh"

template <class Io> struct ChunkFwdParams {
  Rows<const Io> query, key, value;
  GateRows log_decay;
  Rows<Io> output;
  // State before and after each segment: (B H, segments, K, V) and (B H, segments, K). Null
  // for a zero state before, and for a state after that is not needed.
  const float *initial_state, *initial_normalizer;
  float *final_state, *final_normalizer;
  float* decay_total;  // (B H, segments): product of the decays of a segment, or null
  u32* broken;  // rules that gates broke, for each warp; null if they were checked
  Sizes sizes;
  i64 segments, segment_tokens;  // segments of a head, tokens of a segment
  float scale;
};

// Loads the rows of one head and segment chunk by chunk, values from one column on.
template <class Shape, int Map, bool Decay, bool Output> struct ChunkLoader {
  typedef typename Shape::Io Io;
  typedef ChunkTiles<Shape, false> Chunk;
  const Io *query, *key, *value;
  const i64 query_stride, key_stride, value_stride;
  Gates<Io, float> log_decay;  // from the first token of the next chunk on
  const int features, columns;
  LoadedGate<Io, float> next_log_decay;  // of this thread's token of the next chunk
  u32 broken = 0;

  DEVICE ChunkLoader(const ChunkFwdParams<Io>& params, i64 batch, i64 head, i64 start,
                     int column)
      : query(params.query.at_head(batch, head) + start * params.query.token_stride),
        key(params.key.at_head(batch, head) + start * params.key.token_stride),
        value(params.value.at_head(batch, head) + start * params.value.token_stride + column),
        query_stride(params.query.token_stride), key_stride(params.key.token_stride),
        value_stride(params.value.token_stride),
        log_decay(params.log_decay, batch, head, start),
        features(params.sizes.features), columns(params.sizes.values - column) {}

  // Starts to copy the next chunk.
  DEVICE void copy(const Chunk& to) {
    if (Output) to.staged_queries().copy(query, query_stride, to.count, features);
    to.staged_keys().copy(key, key_stride, to.count, features);
    to.staged_values().copy(value, value_stride, to.count, columns);
    cp_async_commit();
    query += Shape::kTokens * query_stride;
    key += Shape::kTokens * key_stride;
    value += Shape::kTokens * value_stride;
    if (!Decay) return;
    const int token = threadIdx.x;
    next_log_decay = LoadedGate<Io, float>();
    if (token < to.count) next_log_decay.load(log_decay, token, 0);
    log_decay.data = log_decay.at(Shape::kTokens, 0);
  }

  // Converts what this thread has copied, and computes the decays of the chunk.
  DEVICE void convert(const Chunk& chunk, ChunkDecays<Shape::kTiles>& decays) {
    const int count = chunk.count;
    const bool splits = Split<Io>::kParts > 1, changes = splits || Map != IDENTITY;
    if (changes && Output)
      chunk.staged_queries().template convert<Map>(chunk.queries(), count, features);
    if (changes) chunk.staged_keys().template convert<Map>(chunk.keys(), count, features);
    if (splits)
      chunk.staged_values().template convert<IDENTITY>(chunk.values(), count, columns);
    if (Decay && threadIdx.x / 32 * 32 < Shape::kTokens) {
      const float gate = next_log_decay.widened(log_decay.narrow());
      broken |= broken_by_log_decay(gate);
      decays.compute(gate, threadIdx.x);
    }
  }
};

template <class Shape, int Map, bool Decay, bool Normalize, bool Output>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    chunk_fwd(ChunkFwdParams<typename Shape::Io> params) {
  SHARED_MEMORY(bytes);
  typedef ChunkTiles<Shape, false> Chunk;
  FwdStorage<Shape>& storage = *reinterpret_cast<FwdStorage<Shape>*>(bytes);
  const int warp = threadIdx.x / 32;
  const int features = params.sizes.features, values = params.sizes.values;
  const bool rescales = Output && Split<typename Shape::Io>::kNarrowRange;
  const bool has_output = Output && warp < Shape::kOutputWarps;
  const bool has_state = warp < Shape::kStateWarps;

  const i64 slices = (values + Shape::kColumns - 1) / Shape::kColumns;
  const int column = int(blockIdx.x % slices) * Shape::kColumns, columns = values - column;
  const i64 line = blockIdx.x / slices;  // index of the segment among those of all heads
  const i64 head = line / params.segments;
  const i64 start = line % params.segments * params.segment_tokens;
  const i64 in_batch = head / params.sizes.heads, in_head = head % params.sizes.heads;
  const i64 remaining = params.sizes.tokens - start;
  const i64 tokens = remaining < params.segment_tokens ? remaining : params.segment_tokens;
  const i64 state_offset = line * features * values + column;
  const i64 normalizer_offset = line * features;

  StateAccumulator<Shape, Decay, Normalize> state(warp);
  if (has_state) {
    state.load(
        params.initial_state ? params.initial_state + state_offset : nullptr,
        params.initial_normalizer ? params.initial_normalizer + normalizer_offset : nullptr,
        features, columns, values);
    if (rescales) state.store_max_abs(storage.max_abs);
  }
  __syncthreads();  // max_abs is complete
  ChunkLoader<Shape, Map, Decay, Output> loader(params, in_batch, in_head, start, column);
  typename Shape::Io* output = params.output.at_head(in_batch, in_head) +
                               start * params.output.token_stride + column;
  if (tokens > 0) loader.copy(Chunk(storage.rows, 0, tokens));
  for (i64 number = 0; number * Shape::kTokens < tokens; number++) {
    const i64 done = number * Shape::kTokens, next = done + Shape::kTokens;
    const Chunk chunk(storage.rows, number, tokens - done);
    cp_async_wait<0>();
    loader.convert(chunk, storage.decays);
    if (next < tokens) loader.copy(Chunk(storage.rows, number + 1, tokens - next));
    const float scale = storage.state_scale();
    if (Output && has_state) {
      state.store_smem(storage.state(), scale);
      if (storage.kInParts)
        state.store_normalizer_parts(storage.normalizer_parts, storage.kPitch);
      else
        state.store_normalizer(storage.normalizer());
    }
    __syncthreads();  // the chunk and the state before it are in shared memory
    if (has_output) {
      OutputTile<Shape, Decay, Normalize> tile(storage, chunk, warp);
      tile.multiply_queries();
      tile.apply_causal_mask();
      if (rescales) tile.rescale(scale);
      tile.add_intra_chunk();
      tile.store(output + done * params.output.token_stride, params.output.token_stride,
                 columns, params.scale);
    }
    if (has_state) {
      state.add_chunk(chunk, storage.decays);
      if (rescales) state.store_max_abs(storage.max_abs);
    }
    __syncthreads();  // tiles may be overwritten; max_abs is complete
  }
  if (has_state)
    state.store(params.final_state ? params.final_state + state_offset : nullptr,
                params.final_normalizer && column == 0
                    ? params.final_normalizer + normalizer_offset
                    : nullptr,
                features, columns, values);
  if (params.decay_total != nullptr && column == 0 && threadIdx.x == 0)
    params.decay_total[line] = state.decay_total;
  if (Decay) report_broken(params.broken, loader.broken);
}
