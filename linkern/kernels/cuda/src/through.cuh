// Gradients of the log-decays of a chunk. That of token t is the sum of all M_ij with
// i >= t > j, where M_ij is the part of the result that i reads of j; the memory before the
// chunk is a token before all others, and that behind it one after them.
//
// No M_ij is kept where tiles of 16 tokens differ: there, only whole rows or columns of
// what two tiles have lie on one side of a token. Nothing is subtracted.
#pragma once
#include "matrices.cuh"

template <int Tiles, int Parts, int Warps> struct Through {
  static constexpr int kTokens = 16 * Tiles, kPitch = 17;
  float rows[Tiles][kTokens];          // [other][i]: of what i reads of an earlier tile
  float columns[Tiles][kTokens];       // [other][j]: of what a later tile reads of j
  float diagonal[kTokens][kPitch];     // [i][j % 16]: in one tile
  float before[kTokens];               // of what i reads of the memory before
  float behind[Parts][kTokens];        // of what the memory behind has of j, in parts
  float whole[Warps];                  // of what that has of the memory before, in parts

  // What the tokens of a tile read of those of another one, or of each other.
  DEVICE void put(int tile, int other, const Sums& sums) {
    const int group = own_lane() / 4, pair = own_lane() % 4;
    float by_row[2] = {}, by_column[2][2] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int down = i / 4, half = i / 2 % 2, next = i % 2;
      const float x = sums.entry(down, half, next);
      by_row[down] += x;
      by_column[half][next] += x;
      const int row = 16 * tile + group + 8 * down, column = 8 * half + 2 * pair + next;
      if (other == tile) store_shared(&diagonal[row][column], x);
    }
    if (other == tile) return;
#pragma unroll
    for (int down = 0; down < 2; down++) {
      const float sum = sum_of_row(by_row[down]);
      if (pair == 0) store_shared(&rows[other][16 * tile + group + 8 * down], sum);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float sum = by_column[i / 2][i % 2];
#pragma unroll
      for (int by = 4; by < 32; by *= 2) sum += __shfl_xor_sync(kAllLanes, sum, by);
      const int column = i / 2 * 8 + 2 * pair + i % 2;
      if (group == 0) store_shared(&columns[tile][16 * other + column], sum);
    }
  }

  DEVICE float of(int token) const {
    const int tile = token / 16;
    float sum = 0;
    for (int warp = 0; warp < Warps; warp++) sum += whole[warp];
    for (int i = token; i < kTokens; i++) {
      sum += before[i];
      for (int other = 0; other < tile; other++) sum += rows[other][i];
    }
    for (int j = 0; j < token; j++)
      for (int part = 0; part < Parts; part++) sum += behind[part][j];
    for (int j = 16 * tile; j < token; j++) {
      for (int other = tile + 1; other < Tiles; other++) sum += columns[other][j];
      for (int i = token; i < 16 * (tile + 1); i++) sum += diagonal[i][j % 16];
    }
    return sum;
  }
};
