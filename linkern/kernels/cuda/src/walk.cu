// What is only added to the memory, on tensor cores.
//
//     S_i = exp(g_i) S_(i-1) + k_i v_i^T        o_i = q_i^T S_i / q_i^T z_i
//     z_i = exp(g_i) z_(i-1) + k_i              or s q_i^T S_i
//
// A block of threads walks through the tokens of one head, or of a segment of them, with
// some columns of its values. In each chunk its warps are first readers of the output, and
// then keepers of the memory. Meanwhile the next chunk is copied.
//
// What a token must not see is multiplied by zero: an infinite value spreads to the tokens
// before it in its own tile.
#include "keeper.cuh"
#include "reader.cuh"

template <class Io> struct Forward {
  Rows<const Io> query, key, value;
  Rows<const float> log_decay;
  Rows<Io> output;
  // (B H, segments, K, V), (B H, segments, K); null for zeros, and for what is not asked.
  const float *memory_before, *normalizer_before;
  float *memory, *normalizer;
  float* left;  // (B H, segments): of the memory before a segment behind it; null likewise
  Sizes sizes;
  i64 segments, segment;  // of each head, and tokens of each
  float scale;
};

// The rows that a block walks along: of one head and segment, from one column of values on.
template <class Cut, int Map, bool Decay, bool Reads> struct Source {
  typedef typename Cut::Io Io;
  const Io *query, *key, *value;
  const i64 query_stride, key_stride, value_stride, decay_stride;
  const float* log_decay;  // of this thread's token of the next chunk
  const int features, columns;
  float next = 0;  // that log-decay

  DEVICE Source(const Forward<Io>& of, i64 batch, i64 head, i64 start, int column)
      : query(of.query.of(batch, head) + start * of.query.token),
        key(of.key.of(batch, head) + start * of.key.token),
        value(of.value.of(batch, head) + start * of.value.token + column),
        query_stride(of.query.token), key_stride(of.key.token),
        value_stride(of.value.token), decay_stride(of.log_decay.token),
        log_decay(!Decay ? nullptr : of.log_decay.of(batch, head) + start * decay_stride),
        features(of.sizes.features), columns(of.sizes.values - column) {}

  // Begins to copy the next chunk.
  DEVICE void copy(const Chunk<Cut>& to) {
    if (Reads) to.landed_queries().copy(query, query_stride, to.count, features);
    to.landed_keys().copy(key, key_stride, to.count, features);
    to.landed_values().copy(value, value_stride, to.count, columns);
    commit_copies();
    query += Cut::kTokens * query_stride;
    key += Cut::kTokens * key_stride;
    value += Cut::kTokens * value_stride;
    if (!Decay) return;
    const int token = threadIdx.x;
    next = token < to.count ? log_decay[token * decay_stride] : 0.0f;
    log_decay += Cut::kTokens * decay_stride;
  }

  // What this thread has copied.
  DEVICE void prepare(const Chunk<Cut>& chunk, Decays<Cut::kTiles>& decays) const {
    const int count = chunk.count;
    const bool splits = Planes<Io>::kCount > 1, changes = splits || Map != IDENTITY;
    if (changes && Reads)
      chunk.landed_queries().template prepare<Map>(chunk.queries(), count, features);
    if (changes) chunk.landed_keys().template prepare<Map>(chunk.keys(), count, features);
    if (splits)
      chunk.landed_values().template prepare<IDENTITY>(chunk.values(), count, columns);
    if (Decay && threadIdx.x / 32 * 32 < Cut::kTokens) decays.find(next, threadIdx.x);
  }
};

template <class Cut, int Map, bool Decay, bool Normalize, bool Reads>
__global__ void __launch_bounds__(Cut::kThreads, 1) walk(Forward<typename Cut::Io> of) {
  SHARED_MEMORY(bytes);
  Shared<Cut>& shared = *reinterpret_cast<Shared<Cut>*>(bytes);
  const int warp = threadIdx.x / 32, features = of.sizes.features, values = of.sizes.values;
  const bool narrow = Reads && Planes<typename Cut::Io>::kNarrow;
  const bool reads = Reads && warp < Cut::kReaders, keeps = warp < Cut::kKeepers;

  const i64 slices = (values + Cut::kColumns - 1) / Cut::kColumns;
  const int column = int(blockIdx.x % slices) * Cut::kColumns, columns = values - column;
  const i64 walked = blockIdx.x / slices;  // segments of all heads, in one line
  const i64 head = walked / of.segments, start = walked % of.segments * of.segment;
  const i64 in_batch = head / of.sizes.heads, in_head = head % of.sizes.heads;
  const i64 rest = of.sizes.tokens - start, tokens = rest < of.segment ? rest : of.segment;
  const i64 entry = walked * features * values + column, weight = walked * features;

  Keeper<Cut, Decay, Normalize> keeper(warp);
  if (keeps) {
    keeper.load(of.memory_before ? of.memory_before + entry : nullptr,
                of.normalizer_before ? of.normalizer_before + weight : nullptr, features,
                columns, values);
    if (narrow) keeper.measure(shared);
  }
  __syncthreads();  // of what was measured
  Source<Cut, Map, Decay, Reads> source(of, in_batch, in_head, start, column);
  typename Cut::Io* output =
      of.output.of(in_batch, in_head) + start * of.output.token + column;
  if (tokens > 0) source.copy(Chunk<Cut>(shared, 0, tokens));
  for (i64 number = 0; number * Cut::kTokens < tokens; number++) {
    const i64 done = number * Cut::kTokens, next = done + Cut::kTokens;
    const Chunk<Cut> chunk(shared, number, tokens - done);
    wait_for_copies<0>();
    source.prepare(chunk, shared.decays);
    if (next < tokens) source.copy(Chunk<Cut>(shared, number + 1, tokens - next));
    const float unit = shared.memory_unit();
    if (Reads && keeps)
      keeper.publish(shared.memory_tile(), shared.normalizer, unit);
    __syncthreads();  // of the chunk, and of the memory before it
    if (reads) {
      Reader<Cut, Decay, Normalize> reader(shared, chunk, warp);
      reader.read_memory();
      reader.mask();
      if (narrow) reader.stay_in_range(unit);
      reader.read_tiles();
      reader.write(output + done * of.output.token, of.output.token, columns, of.scale);
    }
    if (keeps) {
      keeper.add(chunk, shared.decays);
      if (narrow) keeper.measure(shared);
    }
    __syncthreads();  // before tiles are overwritten; of what was measured
  }
  if (keeps)
    keeper.store(of.memory ? of.memory + entry : nullptr,
                 of.normalizer && column == 0 ? of.normalizer + weight : nullptr, features,
                 columns, values);
  if (of.left != nullptr && column == 0 && threadIdx.x == 0) of.left[walked] = keeper.left;
}
