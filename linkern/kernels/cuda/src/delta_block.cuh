// A block of threads that takes a head, or a slice of its columns, through all chunks.
//
// Some of its warps have 16 columns each (`Columns`). The others compute what needs no state
// (`DeltaIntraTile`) one chunk ahead of them, and some of these load a further chunk.
#pragma once
#include "delta_intra.cuh"
#include "recurrent.cuh"

// Loads the rows and gates of the head chunk by chunk.
template <class Shape, bool Decay> struct DeltaLoader {
  typedef typename Split<typename Shape::Io>::Stored Stored;
  typedef RecurrentParams<Stored, float> Params;
  typedef DeltaChunk<Shape> Chunk;
  const Params& params;
  DeltaStorage<Shape>& storage;
  // Of this thread's token of the next chunk.
  LoadedGate<Stored, float> next_log_decay, next_beta;
  u32 broken = 0;

  DEVICE DeltaLoader(const Params& params, DeltaStorage<Shape>& storage)
      : params(params), storage(storage) {}

  // Whether this thread loads rows, and the token of which it loads gates: negative or
  // behind the chunk for none.
  DEVICE static bool has_rows() {
    return threadIdx.x - Chunk::kFirstLoader < u32(Chunk::kLoaders);
  }
  DEVICE static int token() { return int(threadIdx.x) - Chunk::kFirstGate; }

  // Starts to copy a chunk.
  DEVICE void copy(int number) {
    const auto& head = storage.slice.head;
    const Chunk to(storage.rows, number, params.sizes.tokens);
    const i64 start = i64(number) * Shape::kTokens;
    const int count = to.count, token = this->token(), features = params.sizes.features;
    const i64 query = params.query.token_stride, key = params.key.token_stride;
    const i64 value = params.value.token_stride;
    if (has_rows()) {
      to.staged_queries().copy(head.query + start * query, query, count, features);
      to.staged_keys().copy(head.key + start * key, key, count, features);
      to.staged_values().copy(head.value + start * value, value, count, storage.slice.columns);
      cp_async_commit();
    }
    next_log_decay = next_beta = LoadedGate<Stored, float>();
    const bool has_gates = token >= 0 && token < count;
    if (Decay && has_gates) next_log_decay.load(head.log_decay, start + token, 0);
    if (params.beta.data != nullptr && has_gates)
      next_beta.load(head.beta, start + token, 0);
  }

  // Waits for the copies of this thread, splits them, and stores what gates make.
  DEVICE void finish(int number) {
    const int token = this->token();
    if (has_rows()) cp_async_wait<0>();
    if (has_rows() && Chunk::kSplits) {
      const Chunk chunk(storage.rows, number, params.sizes.tokens);
      const int count = chunk.count, features = params.sizes.features;
      chunk.staged_queries().template convert<IDENTITY>(chunk.queries(), count, features);
      chunk.staged_keys().template convert<IDENTITY>(chunk.keys(), count, features);
      chunk.staged_values().template convert<IDENTITY>(chunk.values(), count,
                                                       storage.slice.columns);
    }
    if (token < 0 || token >= Chunk::kGates) return;
    if (Decay) {
      const float gate = next_log_decay.widened(params.log_decay.narrow);
      broken |= broken_by_log_decay(gate);
      storage.decays[number % 2].compute(gate, token);
    }
    if (token >= Shape::kTokens) return;
    const bool has_beta = params.beta.data != nullptr;
    const float factor = has_beta ? next_beta.widened(params.beta.narrow) : 1.0f;
    broken |= broken_by_beta(factor);
    storage.beta[number % 3][token] = factor;
  }
};

// The part of a warp that needs no state: a tile of tokens as rows, of which the scores of
// queries, if they are needed, and of erases are for one warp or two.
template <class Shape, bool Decay, bool Scores>
DEVICE void compute_intra(DeltaStorage<Shape>& storage, const DeltaChunk<Shape>& chunk,
                          int number, int warp) {
  constexpr int kWarps = DeltaStorage<Shape>::kIntraWarps;
  static_assert(kWarps == Shape::kTiles || kWarps == 2 * Shape::kTiles, "warps of a tile");
  DeltaIntraTile<Shape, Decay> rows(storage, chunk, number, warp);
  const bool shared = kWarps > Shape::kTiles;
  if (!shared || warp < Shape::kTiles) rows.compute_erases();
  if (Scores && (!shared || warp >= Shape::kTiles)) rows.compute_scores();
}

// Waits until what the next chunks need is complete. Warps of the two kinds wait in loops of
// their own: a barrier counts warps, wherever they are.
DEVICE void wait_for_all_warps() { __syncthreads(); }

// Columns say in which direction they go through the chunks (`kReverse`), and if they need
// the scores of queries (`kScores`).
template <class Shape, bool Decay, class Columns>
DEVICE void process_head(const typename Columns::Params& params, unsigned char* bytes) {
  typedef DeltaChunk<Shape> Chunk;
  DeltaStorage<Shape>& storage = *reinterpret_cast<DeltaStorage<Shape>*>(bytes);
  const int warp = threadIdx.x / 32, column_warps = storage.kColumnWarps;
  const i64 tokens = params.sizes.tokens;
  const int chunks = int((tokens + Shape::kTokens - 1) / Shape::kTokens);
  const auto number_of = [&](int turn) { return Columns::kReverse ? chunks - 1 - turn : turn; };

  if (threadIdx.x == 0) storage.slice.select(params, blockIdx.x);
  __syncthreads();  // the pointers of the head are complete

  // The two kinds of warps have loops of their own, so that neither keeps registers for the
  // other. In the turn of a chunk of the columns, the others are one chunk ahead, and copies
  // are two.
  if (warp < column_warps) {
    Columns columns(params, storage, warp);
    for (int turn = -2; turn < chunks; turn++) {
      const int number = number_of(turn);
      if (turn >= 0) columns.process(Chunk(storage.rows, number, tokens), number);
      wait_for_all_warps();
    }
    columns.finish();
    report_broken(params.broken, 0);
  } else {
    DeltaLoader<Shape, Decay> loader(params, storage);
    for (int turn = -2; turn < chunks; turn++) {
      const int ahead = turn + 1, copied = turn + 2;
      if (copied < chunks) loader.copy(number_of(copied));
      if (ahead >= 0 && ahead < chunks) {
        const Chunk chunk(storage.rows, number_of(ahead), tokens);
        compute_intra<Shape, Decay, Columns::kScores>(storage, chunk, number_of(ahead),
                                                      warp - column_warps);
      }
      if (copied < chunks) loader.finish(number_of(copied));
      wait_for_all_warps();
    }
    report_broken(params.broken, loader.broken);
  }
}
