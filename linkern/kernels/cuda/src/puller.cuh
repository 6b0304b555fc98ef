// What one warp pulls in a chunk: gradients of a tile of 16 tokens, in a part of the
// columns. Those of queries need the memory before the chunk and the tiles up to their own;
// those of keys and values the cotangent of the memory behind it, and what warps found for
// the tiles from their own on: together as many pairs for every warp.
#pragma once
#include "passing.cuh"

// A row of a block of sums, as far as there are columns, to global memory. Its four lanes
// write 32 bytes side by side.
DEVICE void write_row(float* to, const Sums& sums, int down, int columns) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int at = 8 * half + own_lane() % 4 * 2;
    const float2 two = make_float2(sums.entry(down, half, 0), sums.entry(down, half, 1));
    if (at < columns) *(float2*)(to + at) = two;
  }
}
template <class Half>
DEVICE void write_row(Half* to, const Sums& sums, int down, int columns) {
  const int lane = own_lane(), pair = lane % 4, from = lane / 4 * 4 + pair % 2 * 2;
  Words<2> four;
#pragma unroll
  for (int next = 0; next < 2; next++) {
    u32 halves[2];
#pragma unroll
    for (int half = 0; half < 2; half++)
      halves[half] = __shfl_sync(
          kAllLanes, pack(Half(), sums.entry(down, half, 0), sums.entry(down, half, 1)),
          from + next);
    four.of[next] = pair < 2 ? halves[0] : halves[1];
  }
  if (4 * pair < columns) *(Words<2>*)(to + 4 * pair) = four;
}

template <class Cut, int Map, bool Decay, bool Normalize> struct Pull {
  typedef typename Cut::Io Io;
  typedef typename Planes<Io>::Stored Stored;
  static constexpr int kTiles = Cut::kTiles, kParts = Tiles<Cut>::kParts;
  static constexpr int kTall = Cut::kTall < kParts ? 1 : Cut::kTall / kParts;
  static constexpr int kWide = Cut::kWide < kParts ? 1 : Cut::kWide / kParts;
  static constexpr int kOthers = (kTiles + kParts - 1) / kParts;
  Tiles<Cut>& tiles;
  const ChunkRows<Cut> chunk;
  const int tile, part, group, pair;
  const bool has_features, has_values;  // of the columns, this part
  float entering[2] = {1, 1}, leaving[2] = {1, 1};  // of rows g and g + 8, in the chunk
  float factors[2] = {}, shifts[2] = {};            // of these: 1 / u or s, and d
  Sums query[kTall] = {};                   // D S^T, of which dQ becomes
  Sums pairs[kOthers] = {}, cotangents[kOthers] = {};  // P and dO V^T of tiles of this part

  DEVICE Pull(Tiles<Cut>& tiles, const ChunkRows<Cut>& chunk, int warp)
      : tiles(tiles), chunk(chunk), tile(warp % kTiles), part(warp / kTiles),
        group(own_lane() / 4), pair(own_lane() % 4),
        has_features(part * kTall < Cut::kTall), has_values(part * kWide < Cut::kWide) {
    if (!Decay) return;
#pragma unroll
    for (int down = 0; down < 2; down++) {
      entering[down] = tiles.decays.entering[row(down)] * whole_between(-1, tile);
      leaving[down] = tiles.decays.leaving[row(down)] * whole_between(tile, kTiles);
    }
  }

  DEVICE int row(int down) const { return 16 * tile + group + 8 * down; }
  DEVICE int feature(int k) const { return 16 * (part * kTall + k); }
  DEVICE int column(int n) const { return 16 * (part * kWide + n); }

  // What the tiles between two leave of what was before them.
  DEVICE float whole_between(int written, int reader) const {
    float left = 1;
    for (int other = written + 1; other < reader; other++)
      left *= tiles.decays.whole[other];
    return left;
  }

  // What rows ask of the memory and of keys, before it is divided; and along each row: its
  // weight and its share of the result, of the memory and of keys.
  DEVICE void pair_up() {
    float4 sums[2] = {};
    if (has_features) read_memory(sums);
#pragma unroll
    for (int m = 0; m < kOthers; m++) {
      const int other = part + m * kParts;
      if (other > tile) continue;
      pairs[m] = paired(chunk.queries(), chunk.keys(), other);
      cotangents[m] = paired(chunk.cotangents(), chunk.values(), other);
      if (Decay) forget(pairs[m], other);
      mask(pairs[m], other);
      mask(cotangents[m], other);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const float x = pairs[m].entry(i / 4, i / 2 % 2, i % 2);
        sums[i / 4].z += x;
        sums[i / 4].w += x * cotangents[m].entry(i / 4, i / 2 % 2, i % 2);
      }
    }
    if (!Normalize && !Decay) return;
#pragma unroll
    for (int down = 0; down < 2; down++) {
      const float4 all = make_float4(sum_of_row(sums[down].x), sum_of_row(sums[down].y),
                                     sum_of_row(sums[down].z), sum_of_row(sums[down].w));
      if (pair == 0) store_shared(&tiles.sums[part][row(down)], all);
    }
  }
  DEVICE void read_memory(float4 (&sums)[2]) {
#pragma unroll 2
    for (int n = 0; n < Cut::kWide; n++) {
      const Side<Io> rows = chunk.cotangents().left(16 * tile, 16 * n);
#pragma unroll
      for (int k = 0; k < kTall; k++)
        multiply_add(query[k], rows,
                     tiles.before.tile().transposed_right(feature(k), 16 * n));
    }
#pragma unroll
    for (int k = 0; k < kTall; k++) {
      query[k].scale(entering);
      const Side<Io> rows = chunk.queries().left(16 * tile, feature(k));
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int down = r % 2, half = r / 2;
        const Pair<Io> both = rows.pair(r);
        if (Normalize) {
          const float2 by = normalizer(tiles.before, feature(k), half);
          sums[down].x += entering[down] * (both.first() * by.x + both.second() * by.y);
        }
        sums[down].y += both.first() * query[k].entry(down, half, 0) +
                        both.second() * query[k].entry(down, half, 1);
      }
    }
  }

  // What each row asks of the memory, to where all warps find it.
  DEVICE void ask(float scale) {
#pragma unroll
    for (int down = 0; down < 2; down++) {
      const float4 all = along_row(row(down));
      const bool there = row(down) < chunk.count;
      factors[down] = !there ? 0.0f : Normalize ? 1.0f / (all.x + all.z) : scale;
      shifts[down] =
          there && Normalize ? -factors[down] * (factors[down] * (all.y + all.w)) : 0.0f;
      if (part > 0 || pair > 0) continue;
      store_shared(tiles.asked + row(down), entering[down] * factors[down]);
      store_shared(tiles.asked_weight + row(down), entering[down] * shifts[down]);
      if (Decay)
        store_shared(tiles.through.before + row(down),
                     factors[down] * all.y + shifts[down] * all.x);
    }
  }
  // And what it asks of other rows.
  DEVICE void share_out() {
#pragma unroll
    for (int k = 0; k < kTall; k++) {
      query[k].scale(factors);
      if (!Normalize || !has_features) continue;
      const float entered[2] = {entering[0] * shifts[0], entering[1] * shifts[1]};
      shift(query[k], entered, tiles.before, feature(k));
    }
#pragma unroll
    for (int m = 0; m < kOthers; m++) {
      const int other = part + m * kParts;
      if (other > tile) continue;
      Sums through = pairs[m];
      each_entry([&](int down, int half, int next) {
        float& x = cotangents[m].entry(down, half, next);
        x = factors[down] * x + shifts[down];
      });
      mask(cotangents[m], other);
      each_entry([&](int down, int half, int next) {
        through.entry(down, half, next) *= cotangents[m].entry(down, half, next);
      });
      if (Decay) tiles.through.put(tile, other, through);
      if (Decay) forget(cotangents[m], other);
      pairs[m].scale(factors);
      tiles.pairs().put(16 * tile, 16 * other, pairs[m]);
      tiles.cotangents().put(16 * tile, 16 * other, cotangents[m]);
    }
  }
  DEVICE float4 along_row(int row) const {
    float4 all = make_float4(0, 0, 0, 0);
    if (!Normalize && !Decay) return all;
#pragma unroll
    for (int p = 0; p < kParts; p++) {
      const float4 more = load_shared(&tiles.sums[p][row]);
      all.x += more.x, all.y += more.y, all.z += more.z, all.w += more.w;
    }
    return all;
  }

  DEVICE void pull_queries(Stored* gradient, i64 stride, int features) {
    if (!has_features) return;
    for (int other = 0; other <= tile; other++) {
      const Side<Io> left = tiles.cotangents().left(16 * tile, 16 * other);
#pragma unroll
      for (int k = 0; k < kTall; k++)
        multiply_add(query[k], left, chunk.keys().right(16 * other, feature(k)));
    }
#pragma unroll
    for (int k = 0; k < kTall; k++) {
      through_map(query[k], chunk.queries().left(16 * tile, feature(k)));
      write(query[k], gradient, stride, feature(k), features);
    }
  }

  DEVICE void pull_keys(Stored* gradient, i64 stride, int features) {
    float shares[2] = {};
    Sums found[kTall] = {};
    if (has_features) {
#pragma unroll 2
      for (int n = 0; n < Cut::kWide; n++) {
        const Side<Io> rows = chunk.values().left(16 * tile, 16 * n);
#pragma unroll
        for (int k = 0; k < kTall; k++)
          multiply_add(found[k], rows,
                       tiles.behind.tile().transposed_right(feature(k), 16 * n));
      }
      const float once[2] = {1.0f, 1.0f};
#pragma unroll
      for (int k = 0; k < kTall; k++) {
        if (Normalize) shift(found[k], once, tiles.behind, feature(k));
        if (!Decay) continue;
        found[k].scale(leaving);
        const Side<Io> rows = chunk.keys().left(16 * tile, feature(k));
#pragma unroll
        for (int r = 0; r < 4; r++)
          shares[r % 2] += rows.pair(r).first() * found[k].entry(r % 2, r / 2, 0) +
                           rows.pair(r).second() * found[k].entry(r % 2, r / 2, 1);
      }
    }
    if (Decay)
#pragma unroll
      for (int down = 0; down < 2; down++) {
        const float sum = sum_of_row(shares[down]);
        if (pair == 0) store_shared(&tiles.through.behind[part][row(down)], sum);
      }
    if (!has_features) return;
    for (int other = tile; other < kTiles; other++) {
      const Side<Io> left = tiles.cotangents().transposed_left(16 * other, 16 * tile);
#pragma unroll
      for (int k = 0; k < kTall; k++)
        multiply_add(found[k], left, chunk.queries().right(16 * other, feature(k)));
    }
#pragma unroll
    for (int k = 0; k < kTall; k++) {
      through_map(found[k], chunk.keys().left(16 * tile, feature(k)));
      write(found[k], gradient, stride, feature(k), features);
    }
  }

  DEVICE void pull_values(Stored* gradient, i64 stride, int values) {
    if (!has_values) return;
    Sums found[kWide] = {};
#pragma unroll 2
    for (int k = 0; k < Cut::kTall; k++) {
      const Side<Io> rows = chunk.keys().left(16 * tile, 16 * k);
#pragma unroll
      for (int n = 0; n < kWide; n++)
        multiply_add(found[n], rows, tiles.behind.tile().right(16 * k, column(n)));
    }
#pragma unroll
    for (int n = 0; n < kWide; n++) found[n].scale(leaving);
    for (int other = tile; other < kTiles; other++) {
      const Side<Io> left = tiles.pairs().transposed_left(16 * other, 16 * tile);
#pragma unroll
      for (int n = 0; n < kWide; n++)
        multiply_add(found[n], left, chunk.cotangents().right(16 * other, column(n)));
    }
#pragma unroll
    for (int n = 0; n < kWide; n++) write(found[n], gradient, stride, column(n), values);
  }

  // Products of the rows of this tile with those of another one.
  template <int Width>
  DEVICE Sums paired(Matrix<Io, Cut::kTokens, Width> rows,
                     Matrix<Io, Cut::kTokens, Width> others, int other) const {
    Sums found = {};
#pragma unroll 2
    for (int k = 0; k < Width; k += 16)
      multiply_add(found, rows.left(16 * tile, k), others.transposed_right(16 * other, k));
    return found;
  }

  // All entries of this lane.
  template <class Visit> DEVICE static void each_entry(Visit one) {
#pragma unroll
    for (int i = 0; i < 8; i++) one(i / 4, i / 2 % 2, i % 2);
  }
  // No key is seen before its token: of its own tile only those on the diagonal or below.
  DEVICE void mask(Sums& sums, int other) const {
    each_entry([&](int down, int half, int next) {
      const int written = 8 * half + 2 * pair + next;
      if (other == tile && written > group + 8 * down) sums.entry(down, half, next) = 0.0f;
    });
  }
  // What is left of each key at each row.
  DEVICE void forget(Sums& sums, int other) const {
    const Decays<kTiles>& decays = tiles.decays;
    const float between = other < tile ? whole_between(other, tile) : 1.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int down = i / 2, half = i % 2, written = 8 * half + 2 * pair;
      const int reader = group + 8 * down;
      const float entered = other < tile ? between * decays.entering[row(down)] : 1.0f;
      const float* place = other < tile ? decays.leaving + 16 * other + written
                                        : &decays.within[tile][reader][written];
      const float2 by = load_shared((const float2*)place);
      sums.entry(down, half, 0) *= entered * by.x;
      sums.entry(down, half, 1) *= entered * by.y;
    }
  }
  DEVICE float2 normalizer(const Snapshot<Cut>& of, int column, int half) const {
    return load_shared((const float2*)(of.normalizer + column + 8 * half + 2 * pair));
  }
  DEVICE void shift(Sums& sums, const float (&by)[2], const Snapshot<Cut>& along,
                    int column) const {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float2 both = normalizer(along, column, i % 2);
      sums.entry(i / 2, i % 2, 0) += by[i / 2] * both.x;
      sums.entry(i / 2, i % 2, 1) += by[i / 2] * both.y;
    }
  }
  // Pairs of a side on the left are where the entries of sums are.
  DEVICE void through_map(Sums& sums, const Side<Io>& features) const {
    if (Map == IDENTITY) return;
#pragma unroll
    for (int r = 0; r < 4; r++) {
      sums.entry(r % 2, r / 2, 0) *= slope<Map>(features.pair(r).first());
      sums.entry(r % 2, r / 2, 1) *= slope<Map>(features.pair(r).second());
    }
  }
  DEVICE void write(const Sums& sums, Stored* to, i64 stride, int column,
                    int columns) const {
#pragma unroll
    for (int down = 0; down < 2; down++)
      write_row(to + row(down) * stride + column, sums, down,
                row(down) < chunk.count ? columns - column : 0);
  }
};
