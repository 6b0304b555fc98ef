// What one warp reads in a chunk: the rows of the output of a tile of 16 tokens, in a part
// of the columns.
//
// Each row is found in the memory as it was before the chunk, and then in the tiles of the
// chunk up to its own, one after another.
#pragma once
#include "chunks.cuh"

DEVICE void put_pair(bf16* place, float x, float y) {
  store_shared((u32*)place, pack(bf16(), x, y));
}
DEVICE void put_pair(f16* place, float x, float y) {
  store_shared((u32*)place, pack(f16(), x, y));
}
DEVICE void put_pair(float* place, float x, float y) {
  store_shared((float2*)place, make_float2(x, y));
}

template <class Cut, bool Decay, bool Normalize> struct Reader {
  typedef typename Cut::Io Io;
  static constexpr int kWide = Cut::kReadWide, kTiles = Cut::kTiles;
  Shared<Cut>& shared;
  const Chunk<Cut> chunk;
  const int tile, column, group, pair;
  Sums found[kWide] = {};
  float weights[2] = {};      // of rows g and g + 8
  float units[2] = {1, 1};    // what these rows are divided by
  Sums scores[kTiles] = {};   // with the keys of this tile and of those before

  DEVICE Reader(Shared<Cut>& shared, const Chunk<Cut>& chunk, int warp)
      : shared(shared), chunk(chunk), tile(warp % kTiles),
        column(warp / kTiles * kWide * 16), group(own_lane() / 4), pair(own_lane() % 4) {}

  DEVICE void read_memory() {
#pragma unroll 2
    for (int k = 0; k < Cut::kFeatures; k += 16) {
      const Side<Io> queries = chunk.queries().left(16 * tile, k);
      if (Normalize) weigh(queries, k);
#pragma unroll
      for (int n = 0; n < kWide; n++)
        multiply_add(found[n], queries, shared.memory_tile().right(k, column + 16 * n));
#pragma unroll
      for (int other = 0; other < kTiles; other++)
        if (other <= tile)
          multiply_add(scores[other], queries,
                       chunk.keys().transposed_right(16 * other, k));
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

  // No key is seen before its token.
  DEVICE void mask() {
#pragma unroll
    for (int other = 0; other < kTiles; other++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int down = i / 4, half = i / 2 % 2, written = 8 * half + 2 * pair + i % 2;
        float& score = scores[other].entry(down, half, i % 2);
        score = other < tile || written <= group + 8 * down ? score : 0.0f;
      }
  }

  // Rows are divided by what the largest of their scores asks for.
  DEVICE void stay_in_range(float memory_unit) {
    float factors[2], found_factors[2];
#pragma unroll
    for (int down = 0; down < 2; down++) {
      float largest = 0;
#pragma unroll
      for (int other = 0; other < kTiles; other++)
        if (other <= tile) largest = max(largest, scores[other].largest(down));
      largest = max(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = max(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      units[down] = unit_of<Io>(largest);
      factors[down] = 1.0f / units[down];
      found_factors[down] = memory_unit / units[down];
      weights[down] *= factors[down];
    }
#pragma unroll
    for (int other = 0; other < kTiles; other++) scores[other].scale(factors);
#pragma unroll
    for (int n = 0; n < kWide; n++) found[n].scale(found_factors);
  }

  DEVICE void read_tiles() {
#pragma unroll
    for (int other = 0; other < kTiles; other++) {
      if (other > tile) continue;
      if (Decay) forget(other);
#pragma unroll
      for (int i = 0; i < 8; i++)
        weights[i / 4] += scores[other].entry(i / 4, i / 2 % 2, i % 2);
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

  // Through a strip of shared memory that is this warp's own, in units of 16 bytes.
  DEVICE void write(Io* output, i64 stride, int columns, float scale) {
    constexpr int kInUnit = 16 / sizeof(Io), kUnits = 16 * kWide / kInUnit;
    unsigned char* strip = shared.output + threadIdx.x / 32 * (16 * 16 * kUnits);
    const float factors[2] = {Normalize ? 1.0f / sum_of_row(weights[0]) : units[0] * scale,
                              Normalize ? 1.0f / sum_of_row(weights[1]) : units[1] * scale};
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
      Io* to = output + (16 * tile + row) * stride + at;
      *(uint4*)to = load_shared((const uint4*)place);
    }
  }
};
