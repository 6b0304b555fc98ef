// What one warp pulls in a chunk: the gradients of a tile of 16 tokens. Those of queries
// need the memory before the chunk and the tiles up to their own; those of keys and values
// the cotangent of the memory behind it, and what warps found for the tiles from their own.
#pragma once
#include "passing.cuh"

template <class Cut, int Map, bool Normalize> struct Pull {
  typedef typename Cut::Io Io;
  static constexpr int kTall = Cut::kTall, kWide = Cut::kWide, kTiles = Cut::kTiles;
  Tiles<Cut>& tiles;
  const ChunkRows<Cut> chunk;
  const int tile, group, pair;

  DEVICE Pull(Tiles<Cut>& tiles, const ChunkRows<Cut>& chunk, int tile)
      : tiles(tiles), chunk(chunk), tile(tile), group(own_lane() / 4),
        pair(own_lane() % 4) {}

  DEVICE void pull_queries(Io* gradient, i64 stride, int features, float scale) {
    float factors[2] = {scale, scale}, shift[2] = {};  // 1 / u or s, and d
    if (Normalize) weigh(factors, shift);
    publish_rows(factors, shift);
    Sums found[kTall] = {};
#pragma unroll
    for (int n = 0; n < kWide; n++) {
      const Side<Io> rows = chunk.cotangents().left(16 * tile, 16 * n);
#pragma unroll
      for (int k = 0; k < kTall; k++)
        multiply_add(found[k], rows, tiles.memory().transposed_right(16 * k, 16 * n));
    }
#pragma unroll
    for (int k = 0; k < kTall; k++) {
      found[k].scale(factors);
      if (Normalize) shift_by(found[k], shift, tiles.normalizer + 16 * k);
    }
    for (int other = 0; other <= tile; other++) {
      Sums pairs = paired(chunk.queries(), chunk.keys(), other);
      Sums cotangents = paired(chunk.cotangents(), chunk.values(), other);
      pairs.scale(factors);
      cotangents.scale(factors);
      each_entry(cotangents, [&](float& x, int down, int) { x += shift[down]; });
      mask(cotangents, other);
      tiles.pairs().put(16 * tile, 16 * other, pairs);
      tiles.cotangents().put(16 * tile, 16 * other, cotangents);
      const Side<Io> left = cotangents.template as_left<Io>();
#pragma unroll
      for (int k = 0; k < kTall; k++)
        multiply_add(found[k], left, chunk.keys().right(16 * other, 16 * k));
    }
#pragma unroll
    for (int k = 0; k < kTall; k++) {
      through_map(found[k], chunk.queries().left(16 * tile, 16 * k));
      write(found[k], gradient, stride, 16 * k, features);
    }
  }

  DEVICE void pull_keys(Io* gradient, i64 stride, int features) {
    Sums found[kTall] = {};
#pragma unroll
    for (int n = 0; n < kWide; n++) {
      const Side<Io> rows = chunk.values().left(16 * tile, 16 * n);
#pragma unroll
      for (int k = 0; k < kTall; k++)
        multiply_add(found[k], rows, tiles.outside().transposed_right(16 * k, 16 * n));
    }
    const float once[2] = {1.0f, 1.0f};
    for (int other = tile; other < kTiles; other++) {
      const Side<Io> left = tiles.cotangents().transposed_left(16 * other, 16 * tile);
#pragma unroll
      for (int k = 0; k < kTall; k++)
        multiply_add(found[k], left, chunk.queries().right(16 * other, 16 * k));
    }
#pragma unroll
    for (int k = 0; k < kTall; k++) {
      if (Normalize) shift_by(found[k], once, tiles.outside_normalizer + 16 * k);
      through_map(found[k], chunk.keys().left(16 * tile, 16 * k));
      write(found[k], gradient, stride, 16 * k, features);
    }
  }

  DEVICE void pull_values(Io* gradient, i64 stride, int values) {
    Sums found[kWide] = {};
#pragma unroll
    for (int k = 0; k < kTall; k++) {
      const Side<Io> rows = chunk.keys().left(16 * tile, 16 * k);
#pragma unroll
      for (int n = 0; n < kWide; n++)
        multiply_add(found[n], rows, tiles.outside().right(16 * k, 16 * n));
    }
    for (int other = tile; other < kTiles; other++) {
      const Side<Io> left = tiles.pairs().transposed_left(16 * other, 16 * tile);
#pragma unroll
      for (int n = 0; n < kWide; n++)
        multiply_add(found[n], left, chunk.cotangents().right(16 * other, 16 * n));
    }
#pragma unroll
    for (int n = 0; n < kWide; n++) write(found[n], gradient, stride, 16 * n, values);
  }

  // Products of the rows of this tile with those of another one, as far as these are seen.
  template <int Width>
  DEVICE Sums paired(Matrix<Io, Cut::kTokens, Width> rows,
                     Matrix<Io, Cut::kTokens, Width> others, int other) const {
    Sums found = {};
#pragma unroll
    for (int k = 0; k < Width; k += 16)
      multiply_add(found, rows.left(16 * tile, k), others.transposed_right(16 * other, k));
    mask(found, other);
    return found;
  }

  // 1 / u and d: what the rows read, and how much of it their cotangents ask for.
  DEVICE void weigh(float (&factors)[2], float (&shift)[2]) const {
    Sums read[kWide] = {};
    float weights[2] = {}, shares[2] = {};
#pragma unroll
    for (int k = 0; k < kTall; k++) {
      const Side<Io> rows = chunk.queries().left(16 * tile, 16 * k);
      add_shares(weights, rows, tiles.normalizer + 16 * k);
#pragma unroll
      for (int n = 0; n < kWide; n++)
        multiply_add(read[n], rows, tiles.memory().right(16 * k, 16 * n));
    }
    for (int other = 0; other <= tile; other++) {
      const Sums pairs = paired(chunk.queries(), chunk.keys(), other);
      each_entry(pairs, [&](float x, int down, int) { weights[down] += x; });
      const Side<Io> left = pairs.template as_left<Io>();
#pragma unroll
      for (int n = 0; n < kWide; n++)
        multiply_add(read[n], left, chunk.values().right(16 * other, 16 * n));
    }
#pragma unroll
    for (int n = 0; n < kWide; n++) {
      const Side<Io> rows = chunk.cotangents().left(16 * tile, 16 * n);
#pragma unroll
      for (int r = 0; r < 4; r++)
        shares[r % 2] += rows.pair(r).first() * read[n].entry(r % 2, r / 2, 0) +
                         rows.pair(r).second() * read[n].entry(r % 2, r / 2, 1);
    }
#pragma unroll
    for (int down = 0; down < 2; down++) {
      factors[down] = 1.0f / sum_of_row(weights[down]);
      shift[down] = -factors[down] * (factors[down] * sum_of_row(shares[down]));
    }
  }
  // For what warps keep. Rows that are not there weigh nothing.
  DEVICE void publish_rows(float (&factors)[2], float (&shift)[2]) const {
#pragma unroll
    for (int down = 0; down < 2; down++) {
      const int row = 16 * tile + group + 8 * down;
      if (row >= chunk.count) factors[down] = shift[down] = 0.0f;
      if (pair > 0) continue;
      store_shared(tiles.factors + row, factors[down]);
      store_shared(tiles.weight_cotangents + row, shift[down]);
    }
  }

  // Products of rows with a vector, as far as this lane has them.
  DEVICE void add_shares(float (&sums)[2], const Side<Io>& rows, const float* by) const {
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const float2 both = load_shared((const float2*)(by + 2 * pair + r / 2 * 8));
      sums[r % 2] += rows.pair(r).first() * both.x + rows.pair(r).second() * both.y;
    }
  }
  DEVICE static float sum_of_row(float x) {
    x += __shfl_xor_sync(kAllLanes, x, 1);
    return x + __shfl_xor_sync(kAllLanes, x, 2);
  }

  // All entries of this lane, with the row g + 8 down and the column of a block.
  template <class Block, class Visit> DEVICE void each_entry(Block& sums, Visit one) const {
#pragma unroll
    for (int i = 0; i < 8; i++)
      one(sums.halves[i / 4][i % 4], i % 4 / 2, i / 4 * 8 + 2 * pair + i % 2);
  }
  // No key is seen before its token: of its own tile only those on the diagonal or below.
  DEVICE void mask(Sums& sums, int other) const {
    each_entry(sums, [&](float& x, int down, int column) {
      if (other == tile && column > group + 8 * down) x = 0.0f;
    });
  }
  DEVICE void shift_by(Sums& sums, const float (&by)[2], const float* row) const {
    each_entry(sums, [&](float& x, int down, int column) {
      x += by[down] * load_shared(row + column);
    });
  }
  // Pairs of a side on the left are where the entries of sums are.
  DEVICE void through_map(Sums& sums, const Side<Io>& features) const {
#pragma unroll
    for (int r = 0; r < 4; r++) {
      sums.entry(r % 2, r / 2, 0) *= slope<Map>(features.pair(r).first());
      sums.entry(r % 2, r / 2, 1) *= slope<Map>(features.pair(r).second());
    }
  }
  DEVICE void write(const Sums& sums, Io* to, i64 stride, int column, int columns) const {
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const int row = 16 * tile + group + r % 2 * 8, at = column + r / 2 * 8 + 2 * pair;
      if (row < chunk.count && at < columns)
        *(u32*)(to + row * stride + at) =
            pack(Io(), sums.entry(r % 2, r / 2, 0), sums.entry(r % 2, r / 2, 1));
    }
  }
};
