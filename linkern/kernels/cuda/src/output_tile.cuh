// The output of a tile of 16 tokens in a slice of the columns, computed by one warp:
//
//     O = exp(g) Q S + tril(decay_mask * Q K^T) V, divided by the row weights or scaled.
//
// The state S is that before the chunk. The tiles up to the warp's own are added in order;
// what was accumulated before is decayed with each of them.
#pragma once
#include "fwd_storage.cuh"

DEVICE void store_pair(bf16* target, float x, float y) {
  store_shared((u32*)target, pack(bf16(), x, y));
}
DEVICE void store_pair(f16* target, float x, float y) {
  store_shared((u32*)target, pack(f16(), x, y));
}
DEVICE void store_pair(float* target, float x, float y) {
  store_shared((float2*)target, make_float2(x, y));
}

template <class Shape, bool Decay, bool Normalize> struct OutputTile {
  typedef typename Shape::Io Io;
  typedef ChunkTiles<Shape, false> Chunk;
  static constexpr int kBlocks = Shape::kOutputBlocks, kTiles = Shape::kTiles;
  // Blocks of features in flight, and tiles of keys that are loaded at once.
  static constexpr int kUnrolledBlocks =
      Shape::kFeatureBlocks <= 4 ? Shape::kFeatureBlocks : 2;
  static constexpr int kAtOnce = Split<Io>::kParts == 1 && kTiles > 1 ? 2 : 1;
  FwdStorage<Shape>& storage;
  const Chunk chunk;
  const int tile, column, group, pair;
  Accumulator output[kBlocks] = {};
  // Weights of the rows: the sum of all entries of a row of this block of eight columns.
  float weights[4] = {};
  float row_scales[2] = {1, 1};    // divisors of these rows
  Accumulator scores[kTiles] = {};  // Q K^T with this tile and those before it

  DEVICE OutputTile(FwdStorage<Shape>& storage, const Chunk& chunk, int warp)
      : storage(storage), chunk(chunk), tile(tile_of(warp)),
        column(warp / kTiles * kBlocks * 16), group(lane_id() / 4), pair(lane_id() % 4) {}

  // Later tiles have more scores. Warps that are four apart share a scheduler, so every
  // second four of them take their tiles in reverse.
  DEVICE static int tile_of(int warp) {
    constexpr int kOrder = kTiles < 4 ? kTiles : 4;
    const int tile = warp % kTiles;
    return warp / 4 % 2 ? tile / kOrder * kOrder + kOrder - 1 - tile % kOrder : tile;
  }

  // Q S, Q z and Q K^T. Keys of the next tiles are loaded while those before are multiplied.
  DEVICE void multiply_queries() {
#pragma unroll kUnrolledBlocks
    for (int k = 0; k < Shape::kFeatures; k += 16) {
      const OperandFragment<Io> queries = chunk.queries().left(16 * tile, k);
      if (Normalize) add_weights(queries, k);
#pragma unroll
      for (int n = 0; n < kBlocks; n++)
        mma(output[n], queries, storage.state().right(k, column + 16 * n));
      OperandFragment<Io> keys[2][kAtOnce];
      load_keys(keys[0], 0, k);
#pragma unroll
      for (int other = 0; other < kTiles; other += kAtOnce) {
        const int turn = other / kAtOnce % 2;
        if (other + kAtOnce <= tile) load_keys(keys[1 - turn], other + kAtOnce, k);
        if (other <= tile)
#pragma unroll
          for (int i = 0; i < kAtOnce; i++) mma(scores[other + i], queries, keys[turn][i]);
      }
    }
  }
  template <int Count>
  DEVICE void load_keys(OperandFragment<Io> (&keys)[Count], int first, int k) const {
#pragma unroll
    for (int i = 0; i < Count; i++)
      keys[i] = chunk.keys().transposed_right(16 * (first + i), k);
  }

  // Q z. Parts of z are columns of a right operand.
  DEVICE void add_weights(const OperandFragment<Io>& queries, int k) {
    if (storage.kInParts) {
      u32 parts[2] = {0, 0};
      const u16* address = storage.normalizer_parts + group * storage.kPitch + k + 2 * pair;
      if (group < 3) {
        parts[0] = load_shared((const u32*)address);
        parts[1] = load_shared((const u32*)(address + 8));
      }
      mma_columns(weights, queries, parts[0], parts[1]);
      return;
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const float* address = storage.normalizer() + k + 2 * pair + r / 2 * 8;
      const float2 by = load_shared((const float2*)address);
      const SplitPair<Io> both = queries.pair(r);
      weights[2 * (r % 2)] += both.first() * by.x + both.second() * by.y;
    }
  }

  DEVICE void apply_causal_mask() {
#pragma unroll
    for (int other = 0; other < kTiles; other++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int down = i / 4, half = i / 2 % 2, key = 8 * half + 2 * pair + i % 2;
        float& score = scores[other].entry(down, half, i % 2);
        score = other < tile || key <= group + 8 * down ? score : 0.0f;
      }
  }

  // Divides each row by a power of two such that its scores stay in range.
  DEVICE void rescale(float state_scale) {
    float score_factors[2], output_factors[2];
#pragma unroll
    for (int down = 0; down < 2; down++) {
      float largest = 0;
#pragma unroll
      for (int other = 0; other < kTiles; other++)
        if (other <= tile) largest = max(largest, scores[other].max_abs(down));
      largest = max(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = max(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      row_scales[down] = range_scale<Io>(largest);
      score_factors[down] = 1.0f / row_scales[down];
      output_factors[down] = state_scale / row_scales[down];
      weights[2 * down] *= score_factors[down];
      weights[2 * down + 1] *= score_factors[down];
    }
#pragma unroll
    for (int other = 0; other < kTiles; other++) scores[other].scale_rows(score_factors);
#pragma unroll
    for (int n = 0; n < kBlocks; n++) output[n].scale_rows(output_factors);
  }

  DEVICE void add_intra_chunk() {
    typedef typename Split<Io>::Operand Operand;
    // The first column of a right operand: the product is the sums of rows.
    const u32 ones = group == 0 ? pack(Operand(), 1.0f, 1.0f) : 0;
#pragma unroll
    for (int other = 0; other < kTiles; other++) {
      if (other > tile) continue;
      if (Decay) apply_decay(other);
      const OperandFragment<Io> left = scores[other].template as_left<Io>();
      if (Normalize) mma_columns(weights, left, ones, ones);
#pragma unroll
      for (int n = 0; n < kBlocks; n++)
        mma(output[n], left, chunk.values().right(16 * other, column + 16 * n));
    }
  }

  // Decays what was accumulated so far across a tile, and each key to the end of the tile or,
  // in the warp's own tile, to the query.
  DEVICE void apply_decay(int other) {
    const ChunkDecays<kTiles>& decays = storage.decays;
    float earlier[2];
#pragma unroll
    for (int down = 0; down < 2; down++) {
      const int query = group + 8 * down;
      earlier[down] =
          other < tile ? decays.tile_decay[other] : decays.from_start[16 * tile + query];
      weights[2 * down] *= earlier[down];
      weights[2 * down + 1] *= earlier[down];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int key = 8 * half + 2 * pair;
        const float* address = other < tile ? decays.to_end + 16 * other + key
                                            : &decays.decay_mask[tile][query][key];
        const float2 by = load_shared((const float2*)address);
        scores[other].entry(down, half, 0) *= by.x;
        scores[other].entry(down, half, 1) *= by.y;
      }
    }
#pragma unroll
    for (int n = 0; n < kBlocks; n++) output[n].scale_rows(earlier);
  }

  // Epilogue: divides or scales the rows and stores them in units of 16 bytes, through a
  // strip of shared memory that belongs to this warp.
  DEVICE void store(Io* target, i64 stride, int columns, float scale) {
    constexpr int kPerUnit = 16 / sizeof(Io), kUnits = 16 * kBlocks / kPerUnit;
    unsigned char* strip = storage.output + threadIdx.x / 32 * (16 * 16 * kUnits);
    float factors[2];
#pragma unroll
    for (int down = 0; down < 2; down++)
      factors[down] = Normalize
                          ? 1.0f / quad_sum(weights[2 * down] + weights[2 * down + 1])
                          : row_scales[down] * scale;
#pragma unroll
    for (int n = 0; n < kBlocks; n++) {
      output[n].scale_rows(factors);
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int down = 0; down < 2; down++) {
          const int at = 16 * n + 8 * half + 2 * pair, unit = at / kPerUnit;
          unsigned char* address =
              strip + SwizzledRows<kUnits>::offset(group + 8 * down, unit);
          store_pair((Io*)address + at % kPerUnit, output[n].entry(down, half, 0),
                     output[n].entry(down, half, 1));
        }
    }
    __syncwarp();  // the strip is complete
#pragma unroll
    for (int i = lane_id(); i < 16 * kUnits; i += 32) {
      const int row = i / kUnits, unit = i % kUnits, at = column + unit * kPerUnit;
      if (16 * tile + row >= chunk.count || at >= columns) continue;
      const unsigned char* address = strip + SwizzledRows<kUnits>::offset(row, unit);
      Io* to = target + (16 * tile + row) * stride + at;
      *(uint4*)to = load_shared((const uint4*)address);
    }
  }
};
