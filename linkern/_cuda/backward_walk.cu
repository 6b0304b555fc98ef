// Gradients of what is only added to the memory, on tensor cores, where nothing decays.
//
// With P the seen pairs of a chunk, S the memory before it, R the cotangent of that after
// it, z and r their normalizers, Q and F the features, u the weights of the rows:
//
//     D  = dO / u  or  s dO        dQ = D S^T + d z^T + A F      A = D V^T + d 1^T, seen
//     d  = -D . (Q S + P V) / u    dF = V R^T + 1 r^T + A^T Q    R <- R + Q^T D
//     or 0                         dV = F R + P^T D              r <- r + Q^T d
//
// A block of threads walks back through the tokens of one head, and its warps keep S and R
// in registers, in float32. The memory is known behind every segment; in it, what a chunk
// added is subtracted again, which leaves the error of some sums of a segment, and no
// memory has to be written or read in between. So what passes is all inputs and gradients
// once, keys and values once more on the way there, and K V numbers of each segment.
//
// A warp pulls the queries of a tile of 16 tokens, and then, of all queries behind them,
// the keys and values of the same tile: together as many pairs for every warp. Pairs are
// multiplied twice, which costs less than keeping them. D is never rounded: rows of dO are
// multiplied by 1 / u behind the products.
#include "keeper.cuh"
#include "puller.cuh"

// Each token's column of a side times its own number.
template <class Io> DEVICE Side<Io> weighed(const Side<Io>& side, const float* by) {
  Side<Io> found;
#pragma unroll
  for (int r = 0; r < 4; r++) {
    const float2 both = load_shared((const float2*)(by + own_lane() % 4 * 2 + r / 2 * 8));
    const Pair<Io> pair = side.pair(r);
    found.put(r, Pair<Io>::of(pair.first() * both.x, pair.second() * both.y));
  }
  return found;
}

// Adds sign (left^T right), and to the normalizer the sums of the rows of left^T. Rows of
// the left side are multiplied by their factors, where there are some.
template <class Cut, bool Normalize>
DEVICE void add(Keeper<Cut, false, Normalize>& to,
                typename ChunkRows<Cut>::FeatureTile left,
                typename ChunkRows<Cut>::ValueTile right, const float* factors,
                const float* column_factors, float sign) {
  typedef typename Cut::Io Io;
  constexpr int kTall = Cut::kKeptTall, kWide = Cut::kKeptWide;
  Sums added[kTall][kWide] = {};
  float rows[kTall][4] = {};
#pragma unroll 1
  for (int tile = 0; tile < Cut::kTiles; tile++) {
    Side<Io> sides[kTall];
#pragma unroll
    for (int k = 0; k < kTall; k++) {
      sides[k] = left.transposed_left(16 * tile, to.row + 16 * k);
      if (Normalize && column_factors == nullptr) add_rows(rows[k], sides[k]);
      if (Normalize && column_factors != nullptr)
        add_rows(rows[k], weighed(sides[k], column_factors + 16 * tile));
      if (factors != nullptr) sides[k] = weighed(sides[k], factors + 16 * tile);
    }
#pragma unroll
    for (int n = 0; n < kWide; n++) {
      const Side<Io> side = right.right(16 * tile, to.column + 16 * n);
#pragma unroll
      for (int k = 0; k < kTall; k++) multiply_add(added[k][n], sides[k], side);
    }
  }
  const float signs[2] = {sign, sign};
#pragma unroll
  for (int k = 0; k < kTall; k++) {
#pragma unroll
    for (int n = 0; n < kWide; n++) {
      added[k][n].scale(signs);
      to.memory[k][n].keep(1.0f, added[k][n]);
    }
#pragma unroll
    for (int r = 0; r < 4; r++) to.normalizer[k][r] += sign * rows[k][r];
  }
}

// To where all warps find it.
template <class Cut, bool Normalize>
DEVICE void publish(const Keeper<Cut, false, Normalize>& from,
                    typename Tiles<Cut>::MemoryTile to, float* normalizer) {
#pragma unroll
  for (int k = 0; k < Cut::kKeptTall; k++) {
#pragma unroll
    for (int n = 0; n < Cut::kKeptWide; n++)
      to.put(from.row + 16 * k, from.column + 16 * n, from.memory[k][n]);
    if (!Normalize || from.column > 0 || from.pair > 0) continue;
    store_shared(normalizer + from.row + 16 * k + from.group, from.normalizer[k][0]);
    store_shared(normalizer + from.row + 16 * k + from.group + 8, from.normalizer[k][2]);
  }
}

template <class Cut, int Map, bool Normalize>
__global__ void __launch_bounds__(Cut::kThreads, 1) walk_back(Backward<typename Cut::Io> of) {
  static_assert(Cut::kThreads == 32 * Cut::kTiles, "each warp pulls one tile");
  SHARED_MEMORY(bytes);
  Tiles<Cut>& tiles = *reinterpret_cast<Tiles<Cut>*>(bytes);
  const int warp = threadIdx.x / 32, features = of.sizes.features, values = of.sizes.values;
  const bool keeps = warp < Cut::kKeepers;
  const i64 head = blockIdx.x;
  const i64 in_batch = head / of.sizes.heads, in_head = head % of.sizes.heads;
  const i64 size = i64(features) * values;
  const auto &d_query = of.query_gradient, &d_key = of.key_gradient;
  const auto& d_value = of.value_gradient;

  Keeper<Cut, false, Normalize> memory(warp), outside(warp);
  if (keeps)
    outside.load(of.given ? of.given + head * size : nullptr,
                 of.given_normalizer ? of.given_normalizer + head * features : nullptr,
                 features, values, values);
  const i64 chunks = (of.sizes.tokens + Cut::kTokens - 1) / Cut::kTokens;
  auto chunk_at = [&](i64 number) {
    const i64 rest = of.sizes.tokens - number * Cut::kTokens;
    return ChunkRows<Cut>{tiles.rows + number % 2 * ChunkRows<Cut>::kBytes,
                      int(rest < Cut::kTokens ? rest : Cut::kTokens)};
  };
  chunk_at(chunks - 1).copy(of, in_batch, in_head, (chunks - 1) * Cut::kTokens);
  for (i64 number = chunks - 1; number >= 0; number--) {
    const i64 start = number * Cut::kTokens, behind = start + Cut::kTokens;
    const ChunkRows<Cut> chunk = chunk_at(number);
    wait_for_copies<0>();
    chunk.template prepare<Map>(features);
    __syncthreads();  // of the chunk; before all that belonged to the last is overwritten
    if (number > 0)
      chunk_at(number - 1).copy(of, in_batch, in_head, start - Cut::kTokens);
    if (keeps) {
      if (number == chunks - 1 || behind % of.segment == 0) {
        const i64 segment = head * of.segments + behind / of.segment;
        const bool last = number == chunks - 1;
        memory.load(last ? of.last + head * size : of.kept + segment * size,
                    !Normalize ? nullptr
                    : last     ? of.last_normalizer + head * features
                               : of.kept_normalizer + segment * features,
                    features, values, values);
      }
      add(memory, chunk.keys(), chunk.values(), nullptr, nullptr, -1.0f);
      publish(memory, tiles.memory(), tiles.normalizer);
      publish(outside, tiles.outside(), tiles.outside_normalizer);
    }
    __syncthreads();  // of the memories
    Pull<Cut, Map, Normalize> pull(tiles, chunk, warp);
    pull.pull_queries(d_query.of(in_batch, in_head) + start * d_query.token, d_query.token,
                      features, of.scale);
    __syncthreads();  // of the pairs
    pull.pull_keys(d_key.of(in_batch, in_head) + start * d_key.token, d_key.token, features);
    pull.pull_values(d_value.of(in_batch, in_head) + start * d_value.token, d_value.token,
                     values);
    if (keeps)
      add(outside, chunk.queries(), chunk.cotangents(), tiles.factors,
          tiles.weight_cotangents, 1.0f);
  }
  if (keeps)
    outside.store(of.outside + head * size,
                  Normalize ? of.outside_normalizer + head * features : nullptr, features,
                  values, values);
}
