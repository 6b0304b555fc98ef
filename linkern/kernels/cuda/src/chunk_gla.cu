// Chunkwise forward with a decay for each channel, on tensor cores: recurrent.cuh without
// erases, or with erases that are keys.
//
// A block of threads takes one head, or a slice of its columns, through all chunks. Some of
// its warps have 16 columns each (`GlaColumns`). The others compute what needs no state
// (`GlaIntra`) one chunk ahead of them, and load a further chunk.
#include "gla_columns.cuh"
#include "gla_intra.cuh"

// Loads the rows and gates of the head chunk by chunk.
template <class Shape, bool Erases> struct GlaLoader {
  typedef typename Split<typename Shape::Io>::Stored Stored;
  typedef RecurrentParams<Stored, float> Params;
  typedef GlaChunk<Shape> Chunk;
  // A thread has the gates of one channel, and of one of so many tokens.
  static constexpr int kTokensAtOnce = Chunk::kLoaders / Shape::kFeatures;
  static constexpr int kGates = Shape::kTokens / kTokensAtOnce;
  static_assert(kTokensAtOnce > 0, "a thread for each channel");
  const Params& params;
  GlaStorage<Shape, Erases>& storage;
  const int thread, channel, first;  // token
  LoadedGate<Stored, float> log_decays[kGates], beta;  // of the next chunk
  u32 broken = 0;

  DEVICE GlaLoader(const Params& params, GlaStorage<Shape, Erases>& storage, int thread)
      : params(params), storage(storage), thread(thread),
        channel(thread % Shape::kFeatures), first(thread / Shape::kFeatures) {}

  DEVICE bool has_beta() const { return Erases && params.beta.data != nullptr; }

  // Starts to copy a chunk.
  DEVICE void copy(int number) {
    const auto& head = storage.slice.head;
    const Chunk to(storage.rows, number, params.sizes.tokens);
    const i64 start = i64(number) * Shape::kTokens;
    const int count = to.count, features = params.sizes.features;
    const i64 query = params.query.token_stride, key = params.key.token_stride;
    const i64 value = params.value.token_stride;
    to.queries().copy(head.query + start * query, query, count, features);
    to.keys().copy(head.key + start * key, key, count, features);
    to.staged_values().copy(head.value + start * value, value, count,
                            storage.slice.columns);
    cp_async_commit();
    const Gates<Stored, float> gates = head.log_decay;  // read from shared memory once
    const unsigned char* place = gates.at(start + first, channel);
#pragma unroll
    for (int i = 0; i < kGates; i++) {
      log_decays[i] = LoadedGate<Stored, float>();
      if (i * kTokensAtOnce + first < count && channel < features)
        log_decays[i].load(place, params.log_decay.narrow);
      place += kTokensAtOnce * gates.token_stride * gates.itemsize;
    }
    beta = LoadedGate<Stored, float>();
    if (has_beta() && thread < count) beta.load(head.beta, start + thread, 0);
  }

  // Waits for the copies of this thread, splits values, and stores what gates make.
  DEVICE void finish(int number) {
    cp_async_wait<0>();
    if (Chunk::kSplits) {
      const Chunk chunk(storage.rows, number, params.sizes.tokens);
      chunk.staged_values().template convert<IDENTITY>(chunk.values(), chunk.count,
                                                       storage.slice.columns);
    }
#pragma unroll
    for (int i = 0; i < kGates; i++) {
      const float gate = log_decays[i].widened(params.log_decay.narrow);
      broken |= broken_by_log_decay(gate);
      store_shared(&storage.decays[i * kTokensAtOnce + first][channel], exp(gate));
    }
    if (!Erases || thread >= Shape::kTokens) return;
    const float factor = has_beta() ? beta.widened(params.beta.narrow) : 1.0f;
    broken |= broken_by_beta(factor);
    storage.beta[number % 3][thread] = factor;
  }
};

// Warps of the two kinds wait in loops of their own: a barrier counts warps, wherever they
// are. All rows of a chunk must be there before halves are multiplied; then no one reads its
// decays again.
DEVICE void wait_for_halves() { __syncthreads(); }
DEVICE void wait_for_all_warps() { __syncthreads(); }

// Blocks of a multiprocessor: a tall state, split rows, or many warps need all registers.
template <class Shape>
constexpr int kResident =
    Shape::kFeatures > 64 || Split<typename Shape::Io>::kParts > 1 || Shape::kThreads > 256
        ? 1
        : 2;

template <class Shape, bool Erases, bool Early>
__global__ void __launch_bounds__(Shape::kThreads, kResident<Shape>)
    chunk_gla(RecurrentParams<typename Split<typename Shape::Io>::Stored, float> params) {
  SHARED_MEMORY(bytes);
  typedef GlaChunk<Shape> Chunk;
  GlaStorage<Shape, Erases>& storage =
      *reinterpret_cast<GlaStorage<Shape, Erases>*>(bytes);
  const int warp = threadIdx.x / 32, column_warps = storage.kColumnWarps;
  const i64 stride = params.output.token_stride, tokens = params.sizes.tokens;
  const int chunks = int((tokens + Shape::kTokens - 1) / Shape::kTokens);

  const auto& head = storage.slice.head;
  if (threadIdx.x == 0) storage.slice.select(params, blockIdx.x);
  // Scores of later keys stay zero.
  for (int i = threadIdx.x; i < int(sizeof(storage.score_bytes) / 4); i += Shape::kThreads)
    ((u32*)storage.score_bytes)[i] = 0;
  __syncthreads();  // the pointers of the head are complete

  // In the round of a chunk of the columns, the other warps are one chunk ahead, and copies
  // are two.
  if (warp < column_warps) {
    GlaColumns<Shape, Erases> state(storage, warp);
    if (head.initial_state != nullptr) state.load(head.initial_state, params.sizes);
    for (int number = -2; number < chunks; number++) {
      const i64 start = i64(number) * Shape::kTokens;
      if (number >= 0) state.multiply_state(number);
      wait_for_halves();
      if (number >= 0)
        state.finish(Chunk(storage.rows, number, tokens), number,
                     head.output + start * stride, stride, params.scale);
      wait_for_all_warps();
    }
    state.store(head.state, params.sizes);
    report_broken(params.broken, 0);
  } else {
    const int thread = int(threadIdx.x) - Chunk::kFirstThread;
    const bool in_last_warp = thread >= Chunk::kLoaders - 32;  // of the fewest operands
    GlaLoader<Shape, Erases> loader(params, storage, thread);
    for (int number = -2; number < chunks; number++) {
      const int ahead = number + 1, copied = number + 2;
      const bool computes = ahead >= 0 && ahead < chunks;
      const auto intra = [&] {
        return GlaIntra<Shape, Erases, Early>(storage, Chunk(storage.rows, ahead, tokens),
                                              ahead, thread);
      };
      if (copied < chunks) loader.copy(copied);
      if (computes) intra().compute_halves();
      wait_for_halves();
      if (computes && in_last_warp) intra().compute_rest();
      if (copied < chunks) loader.finish(copied);
      wait_for_all_warps();
    }
    report_broken(params.broken, loader.broken);
  }
}
