// The part of the state and of the normalizer that one warp holds in registers, in float32.
//
// The contribution of a chunk is summed in accumulators of its own and added once, since a
// tensor core may truncate its sums.
#pragma once
#include "chunk_tiles.cuh"

template <class Shape, bool Decay, bool Normalize> struct StateAccumulator {
  typedef typename Shape::Io Io;
  static constexpr int kRowBlocks = Shape::kStateRowBlocks;
  static constexpr int kColumnBlocks = Shape::kStateColumnBlocks;
  // Tiles in flight: one if the accumulators take most of the registers.
  static constexpr int kUnrolledTiles = kRowBlocks * kColumnBlocks < 8 ? Shape::kTiles : 1;
  const int row, column, group, pair;
  Accumulator state[kRowBlocks][kColumnBlocks] = {};
  float normalizer[kRowBlocks][4] = {};  // in mma layout: entries come in equal pairs
  float decay_total = 1;                 // product of all decays so far

  DEVICE explicit StateAccumulator(int warp)
      : row(warp % Shape::kRowSlices * kRowBlocks * 16),
        column(warp / Shape::kRowSlices * kColumnBlocks * 16), group(lane_id() / 4),
        pair(lane_id() % 4) {}

  // S <- decay S + K^T V and z <- decay z + K^T 1, with keys decayed to the end of the chunk.
  template <class Chunk>
  DEVICE void add_chunk(const Chunk& chunk, const ChunkDecays<Shape::kTiles>& decays) {
    Accumulator added[kRowBlocks][kColumnBlocks] = {};
    float row_sums[kRowBlocks][4] = {};
    float later_tiles = 1;  // decay of the tiles behind the current one
#pragma unroll kUnrolledTiles
    for (int tile = Shape::kTiles - 1; tile >= 0; tile--) {
      OperandFragment<Io> keys[kRowBlocks];
#pragma unroll
      for (int k = 0; k < kRowBlocks; k++) {
        keys[k] = chunk.keys().transposed_left(16 * tile, row + 16 * k);
        if (Decay) scale_tokens(keys[k], decays.to_end + 16 * tile, later_tiles);
        if (Normalize) mma_row_sums(row_sums[k], keys[k]);
      }
#pragma unroll
      for (int n = 0; n < kColumnBlocks; n++) {
        const OperandFragment<Io> values = chunk.values().right(16 * tile, column + 16 * n);
#pragma unroll
        for (int k = 0; k < kRowBlocks; k++) mma(added[k][n], keys[k], values);
      }
      if (Decay) later_tiles *= decays.tile_decay[tile];
    }
    decay_total *= later_tiles;
    decay_add(later_tiles, added, row_sums);
  }
  DEVICE void decay_add(float decay, const Accumulator (&added)[kRowBlocks][kColumnBlocks],
                        const float (&row_sums)[kRowBlocks][4]) {
#pragma unroll
    for (int k = 0; k < kRowBlocks; k++) {
#pragma unroll
      for (int n = 0; n < kColumnBlocks; n++) state[k][n].decay_add(decay, added[k][n]);
#pragma unroll
      for (int r = 0; r < 4; r++)
        normalizer[k][r] = decay * normalizer[k][r] + row_sums[k][r];
    }
  }

  // Multiplies each token of a transposed left operand by a factor of its own and `common`.
  DEVICE void scale_tokens(OperandFragment<Io>& rows, const float* factors,
                           float common) const {
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const float2 by = load_shared((const float2*)(factors + 2 * pair + r / 2 * 8));
      const SplitPair<Io> both = rows.pair(r);
      rows.set(r, SplitPair<Io>::from(both.first() * (by.x * common),
                                      both.second() * (by.y * common)));
    }
  }

  // Stores the largest absolute value of this warp's entries.
  DEVICE void store_max_abs(float* max_abs) const {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 2 * kRowBlocks * kColumnBlocks; i++)
      largest =
          max(largest, state[i / 2 / kColumnBlocks][i / 2 % kColumnBlocks].max_abs(i % 2));
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      largest = max(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    if (lane_id() == 0) max_abs[threadIdx.x / 32] = largest;
  }

  // Stores the state, divided by a scale, as an operand in shared memory.
  DEVICE void store_smem(SmemMatrix<Io, Shape::kFeatures, Shape::kColumns> target,
                         float scale) const {
    const float factors[2] = {1.0f / scale, 1.0f / scale};
#pragma unroll
    for (int k = 0; k < kRowBlocks; k++)
#pragma unroll
      for (int n = 0; n < kColumnBlocks; n++) {
        Accumulator divided = state[k][n];
        divided.scale_rows(factors);
        target.store(row + 16 * k, column + 16 * n, divided);
      }
  }
  DEVICE void store_normalizer(float* target) const {
    if (!Normalize || column > 0 || pair > 0) return;
#pragma unroll
    for (int k = 0; k < kRowBlocks; k++) {
      store_shared(target + row + 16 * k + group, normalizer[k][0]);
      store_shared(target + row + 16 * k + group + 8, normalizer[k][2]);
    }
  }
  // Stores the three parts of the normalizer in rows of a pitch, one for each pair.
  DEVICE void store_normalizer_parts(u16* target, int pitch) const {
    if (!Normalize || column > 0) return;
#pragma unroll
    for (int k = 0; k < kRowBlocks; k++) {
      const SplitPair<float> both =
          SplitPair<float>::from(normalizer[k][0], normalizer[k][2]);
      const u32 two = pair == 0   ? both.parts[0]
                      : pair == 1 ? both.parts[1]
                                  : both.parts[2];
      if (pair == 3) continue;
      u16* to = target + pair * pitch + row + 16 * k + group;
      store_shared(to, u16(two));
      store_shared(to + 8, u16(two >> 16));
    }
  }

  // From and to global memory, where rows of the state have `stride` columns, of which
  // `columns` belong to this block of threads. Null pointers are skipped.
  DEVICE void load(const float* source, const float* source_normalizer, int features,
                   int columns, int stride) {
    if (source != nullptr)
      for_each_pair(features, columns, [&](float& x, float& y, int k, int n) {
        const float2 both = *(const float2*)(source + i64(k) * stride + n);
        x = both.x, y = both.y;
      });
    if (source_normalizer != nullptr)
#pragma unroll
      for (int i = 0; i < 4 * kRowBlocks; i++) {
        const int k = row + i / 4 * 16 + group + i % 4 / 2 * 8;
        if (k < features) normalizer[i / 4][i % 4] = source_normalizer[k];
      }
  }
  DEVICE void store(float* target, float* target_normalizer, int features, int columns,
                    int stride) {
    if (target != nullptr)
      for_each_pair(features, columns, [&](float& x, float& y, int k, int n) {
        *(float2*)(target + i64(k) * stride + n) = make_float2(x, y);
      });
    if (target_normalizer != nullptr && column == 0 && pair == 0)
#pragma unroll
      for (int i = 0; i < 2 * kRowBlocks; i++) {
        const int k = row + i / 2 * 16 + group + i % 2 * 8;
        if (k < features) target_normalizer[k] = normalizer[i / 2][i % 2 * 2];
      }
  }
  // Visits neighbouring entries of a row, with the row and the column of the first.
  template <class Visit> DEVICE void for_each_pair(int features, int columns, Visit visit) {
#pragma unroll
    for (int i = 0; i < 4 * kRowBlocks * kColumnBlocks; i++) {
      const int block = i / 4, half = i / 2 % 2, down = i % 2;
      Accumulator& entries = state[block / kColumnBlocks][block % kColumnBlocks];
      const int k = row + block / kColumnBlocks * 16 + group + 8 * down;
      const int n = column + block % kColumnBlocks * 16 + 8 * half + 2 * pair;
      if (k < features && n < columns)
        visit(entries.entry(down, half, 0), entries.entry(down, half, 1), k, n);
    }
  }
};
