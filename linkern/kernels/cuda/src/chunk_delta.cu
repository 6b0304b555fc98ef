// Chunkwise forward of the (gated) delta rule, on tensor cores: recurrent.cuh with erases
// that are keys and one decay for each token, or none.
//
// A block of threads takes one head, or a slice of its columns, through all chunks. Some of
// its warps have 16 columns each (`DeltaColumns`). The others compute what needs no state
// (`DeltaIntraTile`) one chunk ahead of them, while a further chunk is copied.
#include "delta_columns.cuh"
#include "delta_intra.cuh"
#include "recurrent.cuh"

// Loads the rows and gates of one head chunk by chunk, values from one column on.
template <class Shape, bool Decay> struct DeltaLoader {
  typedef typename Split<typename Shape::Io>::Stored Stored;
  typedef HeadRows<Stored, float, Decay ? BY_TOKEN : NO_DECAY, NO_ERASE> Head;
  const Stored *query, *key, *value;
  const i64 query_stride, key_stride, value_stride;
  const Gates<Stored, float> log_decay, beta;
  const int features, columns;
  // Of this thread's token of the next chunk.
  LoadedGate<Stored, float> next_log_decay, next_beta;
  u32 broken = 0;

  DEVICE DeltaLoader(const RecurrentParams<Stored, float>& params, const Head& head,
                     int column)
      : query(head.query), key(head.key), value(head.value + column),
        query_stride(params.query.token_stride), key_stride(params.key.token_stride),
        value_stride(params.value.token_stride), log_decay(head.log_decay), beta(head.beta),
        features(params.sizes.features), columns(params.sizes.values - column) {}

  // Starts to copy a chunk. Pointers that went along with the chunks would be registers of
  // all warps.
  DEVICE void copy(const DeltaChunk<Shape>& to, int number) {
    const i64 start = i64(number) * Shape::kTokens;
    const int count = to.count, token = threadIdx.x;
    to.staged_queries().copy(query + start * query_stride, query_stride, count, features);
    to.staged_keys().copy(key + start * key_stride, key_stride, count, features);
    to.staged_values().copy(value + start * value_stride, value_stride, count, columns);
    cp_async_commit();
    next_log_decay = next_beta = LoadedGate<Stored, float>();
    if (Decay && token < count) next_log_decay.load(log_decay, start + token, 0);
    if (beta.data != nullptr && token < count) next_beta.load(beta, start + token, 0);
  }

  // Converts what this thread has copied, and computes the decays of the chunk.
  DEVICE void convert(const DeltaChunk<Shape>& chunk, DeltaStorage<Shape>& storage,
                      int slot) {
    const int count = chunk.count;
    chunk.staged_queries().template convert<IDENTITY>(chunk.queries(), count, features);
    chunk.staged_keys().template convert<IDENTITY>(chunk.keys(), count, features);
    chunk.staged_values().template convert<IDENTITY>(chunk.values(), count, columns);
    if (threadIdx.x / 32 * 32 >= Shape::kTokens) return;
    if (threadIdx.x < Shape::kTokens) {
      const bool has_beta = beta.data != nullptr;
      const float factor = has_beta ? next_beta.widened(beta.narrow()) : 1.0f;
      broken |= broken_by_beta(factor);
      storage.beta[slot][threadIdx.x] = factor;
    }
    if (!Decay) return;
    const float gate = next_log_decay.widened(log_decay.narrow());
    broken |= broken_by_log_decay(gate);
    storage.decays.compute(gate, threadIdx.x);
  }
};

// The part of a warp that needs no state: a tile of tokens as rows, of which the scores of
// queries and of erases are for one warp or two.
template <class Shape, bool Decay>
DEVICE void compute_intra(DeltaStorage<Shape>& storage, const DeltaChunk<Shape>& chunk,
                          int slot, int warp) {
  constexpr int kWarps = Shape::kThreads / 32 - DeltaStorage<Shape>::kColumnWarps;
  static_assert(kWarps == Shape::kTiles || kWarps == 2 * Shape::kTiles, "warps of a tile");
  DeltaIntraTile<Shape, Decay> rows(storage, chunk, slot, warp % Shape::kTiles);
  const bool shared = kWarps > Shape::kTiles;
  if (!shared || warp < Shape::kTiles) rows.compute_erases();
  if (!shared || warp >= Shape::kTiles) rows.compute_scores();
}

template <class Shape, bool Decay>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    chunk_delta(RecurrentParams<typename Split<typename Shape::Io>::Stored, float> params) {
  SHARED_MEMORY(bytes);
  typedef DeltaLoader<Shape, Decay> Loader;
  typedef DeltaChunk<Shape> Chunk;
  DeltaStorage<Shape>& storage = *reinterpret_cast<DeltaStorage<Shape>*>(bytes);
  const int warp = threadIdx.x / 32, features = params.sizes.features;
  const int values = params.sizes.values, column_warps = storage.kColumnWarps;
  const i64 slices = (values + Shape::kColumns - 1) / Shape::kColumns;
  const int column = int(blockIdx.x % slices) * Shape::kColumns, columns = values - column;
  const typename Loader::Head head(params, blockIdx.x / slices);
  typename Loader::Stored* output = head.output + column;
  const i64 stride = params.output.token_stride, tokens = params.sizes.tokens;
  const int chunks = int((tokens + Shape::kTokens - 1) / Shape::kTokens);

  DeltaColumns<Shape, Decay> state(storage, warp);
  if (warp < column_warps)
    state.load(head.initial_state ? head.initial_state + column : nullptr, features, columns,
               values);
  Loader loader(params, head, column);
  if (chunks > 0) loader.copy(Chunk(storage.rows, 0, tokens), 0);
  // The chunk of the columns; other warps are one ahead.
  for (int number = -1; number < chunks; number++) {
    const int ahead = number + 1, copied = number + 2;
    if (ahead < chunks) {
      cp_async_wait<0>();
      loader.convert(Chunk(storage.rows, ahead, tokens), storage, ahead % 2);
    }
    if (copied < chunks) loader.copy(Chunk(storage.rows, copied, tokens), copied);
    __syncthreads();  // the chunk ahead is in shared memory
    if (warp >= column_warps) {
      if (ahead < chunks)
        compute_intra<Shape, Decay>(storage, Chunk(storage.rows, ahead, tokens),
                                    ahead % 2, warp - column_warps);
    } else if (number >= 0) {
      state.process(Chunk(storage.rows, number, tokens), number % 2,
                    output + i64(number) * Shape::kTokens * stride, stride, columns,
                    params.scale);
    }
    __syncthreads();  // matrices of the chunk ahead are complete; buffers may be overwritten
  }
  if (warp < column_warps) state.store(head.state + column, features, columns, values);
  report_broken(params.broken, loader.broken);
}
