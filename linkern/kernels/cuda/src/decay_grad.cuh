// Gradients of the log-decays of a chunk. That of token t is the sum of all M_ij with
// i >= t > j, where M_ij is the share of the result that query i owes to key j. The state
// before the chunk counts as a key before all tokens, the state after it as a query after
// all tokens.
//
// Off-diagonal 16 x 16 tiles of M are reduced to row and column sums: no token boundary
// splits them. Nothing is subtracted.
#pragma once
#include "lane_sums.cuh"
#include "mma.cuh"

template <int Tiles, int Slices, int Warps> struct DecayGrad {
  static constexpr int kTokens = 16 * Tiles, kPitch = 17;
  float row_sums[Tiles][kTokens];      // [key tile][i]: i with an earlier tile
  float column_sums[Tiles][kTokens];   // [query tile][j]: a later tile with j
  float diagonal[kTokens][kPitch];     // [i][j % 16]: i and j in one tile
  float from_state[kTokens];           // i with the state before the chunk
  float to_state[Slices][kTokens];     // the state after the chunk with j, by slices
  float across[Warps];                 // the state after with the state before, by warps

  // Adds the entries of M for a tile of queries and a tile of keys.
  DEVICE void add_tile(int tile, int other, const Accumulator& entries) {
    const int group = lane_id() / 4, pair = lane_id() % 4;
    float by_row[2] = {}, by_column[2][2] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int down = i / 4, half = i / 2 % 2, next = i % 2;
      const float x = entries.entry(down, half, next);
      by_row[down] += x;
      by_column[half][next] += x;
      const int row = 16 * tile + group + 8 * down, column = 8 * half + 2 * pair + next;
      if (other == tile) store_shared(&diagonal[row][column], x);
    }
    if (other == tile) return;
#pragma unroll
    for (int down = 0; down < 2; down++) {
      const float sum = quad_sum(by_row[down]);
      if (pair == 0) store_shared(&row_sums[other][16 * tile + group + 8 * down], sum);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float sum = by_column[i / 2][i % 2];
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2)
        sum += __shfl_xor_sync(kAllLanes, sum, distance);
      const int column = i / 2 * 8 + 2 * pair + i % 2;
      if (group == 0) store_shared(&column_sums[tile][16 * other + column], sum);
    }
  }

  // Stores the gradients of the log-decays of the first `count` tokens of the chunk.
  DEVICE void store(float* target, i64 stride, int count) const {
    const int token = threadIdx.x;
    if (token / 32 * 32 >= kTokens) return;
    const float sum = reduce(token);
    if (token < count) target[token * stride] = sum;
  }

  // The gradient of the log-decay of a token. All lanes of a warp take part, half of them for
  // a tile: each adds what its token, and those at its place in other tiles, give to every
  // token of the tile, and gets the sum of one token.
  DEVICE float reduce(int token) const {
    const int tile = token / 16 % Tiles, place = token % 16, own = 16 * tile + place;
    float all = 0;  // what all tokens of the tile get
    for (int warp = place; warp < Warps; warp += 16) all += across[warp];
    for (int other = tile + 1; other < Tiles; other++)
      all += query_share(16 * other + place, tile);
    for (int other = 0; other < tile; other++) all += key_share(16 * other + place);
    const float as_query = all + query_share(own, tile);
    float as_key = all + key_share(own);
    for (int other = tile + 1; other < Tiles; other++) as_key += column_sums[other][own];
    float sums[16];
#pragma unroll
    for (int i = 15; i >= 0; i--) {
      as_key += diagonal[16 * tile + i][place];
      sums[i] = i > place ? as_key : as_query;
    }
    return reduce_scatter<16, 8>(sums);
  }
  // What a token gives as a query of keys before a tile, and as a key of the state after the
  // chunk.
  DEVICE float query_share(int i, int tile) const {
    float sum = from_state[i];
    for (int other = 0; other < tile; other++) sum += row_sums[other][i];
    return sum;
  }
  DEVICE float key_share(int j) const {
    float sum = 0;
    for (int slice = 0; slice < Slices; slice++) sum += to_state[slice][j];
    return sum;
  }
};
