// What is only added to the memory, on tensor cores.
//
//     S_i = exp(g_i) S_(i-1) + k_i v_i^T        o_i = q_i^T S_i / q_i^T z_i
//     z_i = exp(g_i) z_(i-1) + k_i              or s q_i^T S_i
//
// A block of threads walks through the tokens of one head, or of a segment of them, with
// some columns of its values. In each chunk its warps are first readers, each of a tile of
// 16 tokens, and then keepers, each of a part of the memory, which stays in their registers
// in float32. What a chunk adds is summed apart and then added once, since a tensor core
// may cut its sums off.
//
// What a token must not see is multiplied by zero: an infinite value spreads to the tokens
// before it in its own tile.
#include "chunks.cuh"

template <class Io> struct Forward {
  Rows<const Io> query, key, value;
  Rows<const float> log_decay;
  Rows<Io> output;
  // (B H, segments, K, V) and (B H, segments, K); null for zeros, and for what nobody wants.
  const float *memory_before, *normalizer_before;
  float *memory, *normalizer;
  float* left;  // (B H, segments): of the memory before a segment behind it; null likewise
  Sizes sizes;
  i64 segments, segment;  // of each head, and tokens of each
  float scale;
};

// One warp's rows of the output: a tile of tokens, a part of the columns.
template <class Cut, bool Decay, bool Normalize> struct Reader {
  typedef typename Cut::Io Io;
  static constexpr int kWide = Cut::kReadWide, kTiles = Cut::kTiles;
  Shared<Cut>& shared;
  const Chunk<Cut>& chunk;
  const int tile, column, group, pair;
  Sums found[kWide] = {};
  float weights[2] = {};
  Sums scores[kTiles] = {};  // with the keys of this tile and of those before

  DEVICE Reader(Shared<Cut>& shared, const Chunk<Cut>& chunk, int warp)
      : shared(shared), chunk(chunk), tile(warp % kTiles), column(warp / kTiles * kWide * 16),
        group(own_lane() / 4), pair(own_lane() % 4) {}

  DEVICE void read_memory() {
#pragma unroll 1
    for (int k = 0; k < Cut::kFeatures; k += 16) {
      const Side<Io> queries = chunk.queries().left(16 * tile, k);
      if (Normalize) weigh(queries, k);
#pragma unroll
      for (int n = 0; n < kWide; n++)
        multiply_add(found[n], queries, shared.memory_tile().right(k, column + 16 * n));
#pragma unroll
      for (int other = 0; other < kTiles; other++)
        if (other <= tile)
          multiply_add(scores[other], queries, chunk.keys().transposed_right(16 * other, k));
    }
  }

  DEVICE void weigh(const Side<Io>& queries, int k) {
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const float* place = shared.normalizer + k + 2 * pair + r / 2 * 8;
      const float2 by = load_shared((const float2*)place);
      const Pair<Io> both = queries.pair(r);
      weights[r % 2] += both.first() * by.x + both.second() * by.y;
    }
  }

  DEVICE void read_tiles() {
#pragma unroll
    for (int other = 0; other < kTiles; other++) {
      if (other > tile) continue;
      if (Decay) forget(other);
      mask(other);
      const Side<Io> left = scores[other].template as_left<Io>();
#pragma unroll
      for (int n = 0; n < kWide; n++)
        multiply_add(found[n], left, chunk.values().right(16 * other, column + 16 * n));
    }
  }

  // What was found before is forgotten while a tile passes, and each of its tokens behind
  // itself.
  DEVICE void forget(int other) {
    const Decays<kTiles>& decays = shared.decays;
    float left[2];
#pragma unroll
    for (int down = 0; down < 2; down++) {
      const int reader = group + 8 * down;
      left[down] = other < tile ? decays.whole[other] : decays.entering[16 * tile + reader];
      weights[down] *= left[down];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int written = 8 * half + 2 * pair;
        const float* place = other < tile ? decays.leaving + 16 * other + written
                                          : &decays.within[tile][reader][written];
        const float2 by = load_shared((const float2*)place);
        scores[other].entry(down, half, 0) *= by.x;
        scores[other].entry(down, half, 1) *= by.y;
      }
    }
#pragma unroll
    for (int n = 0; n < kWide; n++) found[n].scale(left);
  }

  DEVICE void mask(int other) {
#pragma unroll
    for (int down = 0; down < 2; down++)
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float& score = scores[other].entry(down, half, i);
          if (other == tile && 8 * half + 2 * pair + i > group + 8 * down) score = 0.0f;
          weights[down] += score;
        }
  }

  // Through a strip of shared memory that is this warp's own, in units of 16 bytes.
  DEVICE void write(Io* output, i64 stride, int columns, float scale) {
    constexpr int kInUnit = 16 / sizeof(Io), kUnits = 16 * kWide / kInUnit;
    unsigned char* strip = shared.output + threadIdx.x / 32 * (16 * 16 * kUnits);
    const float factors[2] = {Normalize ? 1.0f / whole_weight(0) : scale,
                              Normalize ? 1.0f / whole_weight(1) : scale};
    __syncwarp();  // before the rows of the last chunk are overwritten
#pragma unroll
    for (int n = 0; n < kWide; n++) {
      found[n].scale(factors);
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int down = 0; down < 2; down++) {
          const int at = 16 * n + 8 * half + 2 * pair, unit = at / kInUnit;
          unsigned char* place = strip + Tile<kUnits>::place(group + 8 * down, unit);
          put_pair((Io*)place + at % kInUnit, found[n].entry(down, half, 0),
                   found[n].entry(down, half, 1));
        }
    }
    __syncwarp();  // of the rows
#pragma unroll
    for (int i = own_lane(); i < 16 * kUnits; i += 32) {
      const int row = i / kUnits, unit = i % kUnits, at = column + unit * kInUnit;
      if (16 * tile + row >= chunk.count || at >= columns) continue;
      const unsigned char* place = strip + Tile<kUnits>::place(row, unit);
      *(uint4*)(output + (16 * tile + row) * stride + at) = load_shared((const uint4*)place);
    }
  }

  DEVICE float whole_weight(int down) const {
    float sum = weights[down];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    return sum + __shfl_xor_sync(kAllLanes, sum, 2);
  }
};

// One warp's part of the memory, and the normalizer of its rows.
template <class Cut, bool Decay, bool Normalize> struct Keeper {
  typedef typename Cut::Io Io;
  static constexpr int kTall = Cut::kKeptTall, kWide = Cut::kKeptWide;
  const int row, column, group, pair;
  Sums memory[kTall][kWide] = {};
  float normalizer[kTall][4] = {};  // twice the same, as sums of a product come
  float left = 1;                   // of the memory at the beginning

  DEVICE explicit Keeper(int warp)
      : row(warp % Cut::kRowParts * kTall * 16), column(warp / Cut::kRowParts * kWide * 16),
        group(own_lane() / 4), pair(own_lane() % 4) {}

  DEVICE void add(const Chunk<Cut>& chunk, const Decays<Cut::kTiles>& decays) {
    Sums added[kTall][kWide] = {};
    float rows[kTall][4] = {};
    float behind = 1;  // what the tiles behind one leave of it
#pragma unroll
    for (int tile = Cut::kTiles - 1; tile >= 0; tile--) {
      Side<Io> keys[kTall];
#pragma unroll
      for (int k = 0; k < kTall; k++) {
        keys[k] = chunk.keys().transposed_left(16 * tile, row + 16 * k);
        if (Decay) forget(keys[k], decays.leaving + 16 * tile, behind);
        if (Normalize) add_rows(rows[k], keys[k]);
      }
#pragma unroll
      for (int n = 0; n < kWide; n++) {
        const Side<Io> values = chunk.values().right(16 * tile, column + 16 * n);
#pragma unroll
        for (int k = 0; k < kTall; k++) multiply_add(added[k][n], keys[k], values);
      }
      if (Decay) behind *= decays.whole[tile];
    }
    left *= behind;
#pragma unroll
    for (int k = 0; k < kTall; k++) {
#pragma unroll
      for (int n = 0; n < kWide; n++) memory[k][n].keep(behind, added[k][n]);
#pragma unroll
      for (int r = 0; r < 4; r++) normalizer[k][r] = behind * normalizer[k][r] + rows[k][r];
    }
  }

  DEVICE void forget(Side<Io>& keys, const float* leaving, float behind) const {
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const float2 by = load_shared((const float2*)(leaving + 2 * pair + r / 2 * 8));
      const Pair<Io> both = keys.pair(r);
      keys.put(r, Pair<Io>::of(both.first() * (by.x * behind), both.second() * (by.y * behind)));
    }
  }

  // To where readers find it.
  DEVICE void publish(Shared<Cut>& shared) const {
#pragma unroll
    for (int k = 0; k < kTall; k++) {
#pragma unroll
      for (int n = 0; n < kWide; n++)
        shared.memory_tile().put(row + 16 * k, column + 16 * n, memory[k][n]);
      if (!Normalize || column > 0 || pair > 0) continue;
      store_shared(shared.normalizer + row + 16 * k + group, normalizer[k][0]);
      store_shared(shared.normalizer + row + 16 * k + group + 8, normalizer[k][2]);
    }
  }

  // From and to global memory, where rows of it have `values` columns.
  DEVICE void load(const float* from, const float* total, int features, int columns, int values) {
    if (from != nullptr)
      visit(features, columns, [&](float& x, float& y, int k, int n) {
        const float2 both = *(const float2*)(from + i64(k) * values + n);
        x = both.x, y = both.y;
      });
    if (total != nullptr)
#pragma unroll
      for (int i = 0; i < 4 * kTall; i++) {
        const int k = row + i / 4 * 16 + group + i % 4 / 2 * 8;
        if (k < features) normalizer[i / 4][i % 4] = total[k];
      }
  }
  DEVICE void store(float* to, float* total, int features, int columns, int values) {
    if (to != nullptr)
      visit(features, columns, [&](float& x, float& y, int k, int n) {
        *(float2*)(to + i64(k) * values + n) = make_float2(x, y);
      });
    if (total != nullptr && column == 0 && pair == 0)
#pragma unroll
      for (int i = 0; i < 2 * kTall; i++) {
        const int k = row + i / 2 * 16 + group + i % 2 * 8;
        if (k < features) total[k] = normalizer[i / 2][i % 2 * 2];
      }
  }
  // Neighbours in a row, with the row and the column of the first.
  template <class Visit> DEVICE void visit(int features, int columns, Visit one) {
#pragma unroll
    for (int i = 0; i < 4 * kTall * kWide; i++) {
      const int block = i / 4, half = i / 2 % 2, down = i % 2;
      Sums& sums = memory[block / kWide][block % kWide];
      const int k = row + block / kWide * 16 + group + 8 * down;
      const int n = column + block % kWide * 16 + 8 * half + 2 * pair;
      if (k < features && n < columns)
        one(sums.entry(down, half, 0), sums.entry(down, half, 1), k, n);
    }
  }
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
        query_stride(of.query.token), key_stride(of.key.token), value_stride(of.value.token),
        decay_stride(of.log_decay.token),
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
    if (Reads) chunk.landed_queries().template prepare<Map>(chunk.queries(), count, features);
    chunk.landed_keys().template prepare<Map>(chunk.keys(), count, features);
    chunk.landed_values().template prepare<IDENTITY>(chunk.values(), count, columns);
    if (Decay && threadIdx.x / 32 * 32 < Cut::kTokens) decays.find(next, threadIdx.x);
  }
};

template <class Cut, int Map, bool Decay, bool Normalize, bool Reads>
__global__ void __launch_bounds__(Cut::kThreads, 1) walk(Forward<typename Cut::Io> of) {
  SHARED_MEMORY(bytes);
  Shared<Cut>& shared = *reinterpret_cast<Shared<Cut>*>(bytes);
  const int warp = threadIdx.x / 32, features = of.sizes.features, values = of.sizes.values;
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
                of.normalizer_before ? of.normalizer_before + weight : nullptr, features, columns,
                values);
    if (Reads) keeper.publish(shared);
  }
  Source<Cut, Map, Decay, Reads> source(of, in_batch, in_head, start, column);
  typename Cut::Io* output = of.output.of(in_batch, in_head) + start * of.output.token + column;
  if (tokens > 0) source.copy(Chunk<Cut>(shared, 0, tokens));
  for (i64 number = 0; number * Cut::kTokens < tokens; number++) {
    const i64 done = number * Cut::kTokens, next = done + Cut::kTokens;
    const Chunk<Cut> chunk(shared, number, tokens - done);
    wait_for_copies<0>();
    source.prepare(chunk, shared.decays);
    if (next < tokens) source.copy(Chunk<Cut>(shared, number + 1, tokens - next));
    __syncthreads();  // of the chunk, and of the memory before it
    if (reads) {
      Reader<Cut, Decay, Normalize> reader(shared, chunk, warp);
      reader.read_memory();
      reader.read_tiles();
      reader.write(output + done * of.output.token, of.output.token, columns, of.scale);
    }
    if (keeps) keeper.add(chunk, shared.decays);
    __syncthreads();  // before the memory, the decays and the tiles are overwritten
    if (Reads && keeps) keeper.publish(shared);
  }
  if (keeps)
    keeper.store(of.memory ? of.memory + entry : nullptr,
                 of.normalizer && column == 0 ? of.normalizer + weight : nullptr, features,
                 columns, values);
  if (of.left != nullptr && column == 0 && threadIdx.x == 0) of.left[walked] = keeper.left;
}
