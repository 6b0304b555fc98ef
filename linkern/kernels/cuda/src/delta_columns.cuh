// 16 columns of the values of a head, processed by one warp chunk by chunk:
//
//     (I + L) U = Diag(b) (V - Diag(e) K S)      e: decays from the start of the chunk
//     O = Diag(e) Q S + P U                      f: decays to the end of the chunk
//     S <- e_C S + K^T Diag(f) U
//
// All is transposed: rows are columns of the values, so what was summed in registers is the
// left operand of the next product, and neither the state nor U goes through shared memory.
// The rows of U are found tile by tile: what is written behind a tile does not reach it.
#pragma once
#include "delta_storage.cuh"

template <class Shape, bool Decay> struct DeltaColumns {
  typedef typename Shape::Io Io;
  typedef typename Split<Io>::Stored Stored;
  typedef typename Computed<Io>::Type Wide;
  typedef OperandFragment<Wide> Factor;  // of what was computed
  static constexpr int kTiles = Shape::kTiles, kBlocks = Shape::kFeatureBlocks;
  DeltaStorage<Shape>& storage;
  const int column, group, pair;
  Accumulator state[kBlocks] = {};  // transposed: columns of the values, features

  DEVICE DeltaColumns(DeltaStorage<Shape>& storage, int warp)
      : storage(storage), column(16 * warp), group(lane_id() / 4), pair(lane_id() % 4) {}

  DEVICE void process(const DeltaChunk<Shape>& chunk, int number, Stored* output, i64 stride,
                      float scale) {
    const int slot = number % 2;
    Accumulator erased[kTiles] = {}, read[kTiles] = {};
    multiply_state(chunk, erased, read);
    Accumulator written[kTiles];  // U
    Factor factors[kTiles];       // the same as a left operand
#pragma unroll
    for (int tile = 0; tile < kTiles; tile++) {
      written[tile] = solve(chunk, number, tile, erased[tile], factors);
      factors[tile] = written[tile].template as_left<Wide>();
      add_scores(slot, tile, read[tile], factors);
      store_output(read[tile], tile, chunk.count, output, stride, scale);
    }
    add_chunk(chunk, slot, written);
  }

  // S^T K^T and S^T Q^T.
  DEVICE void multiply_state(const DeltaChunk<Shape>& chunk, Accumulator (&erased)[kTiles],
                             Accumulator (&read)[kTiles]) const {
#pragma unroll
    for (int k = 0; k < kBlocks; k++) {
      const Factor left = state[k].template as_left<Wide>();
#pragma unroll
      for (int tile = 0; tile < kTiles; tile++) {
        mma(erased[tile], left, chunk.keys().transposed_right(16 * tile, 16 * k));
        mma(read[tile], left, chunk.queries().transposed_right(16 * tile, 16 * k));
      }
    }
  }

  // A step of forward substitution: what a tile writes, given what is erased of the state.
  DEVICE Accumulator solve(const DeltaChunk<Shape>& chunk, int number, int tile,
                           Accumulator& rest, const Factor (&factors)[kTiles]) const {
    const int slot = number % 2;
    const auto erases = storage.erases(slot);
    if (Decay) scale_tokens(rest, storage.entering[slot] + 16 * tile);
    subtract_from(rest, chunk.values().transposed_left(16 * tile, column));
    scale_tokens(rest, storage.beta[number % 3] + 16 * tile);
#pragma unroll
    for (int other = 0; other < kTiles; other++)
      if (other < tile)
        mma(rest, factors[other], erases.transposed_right(16 * tile, 16 * other));
    Accumulator solved = {};
    mma(solved, rest.template as_left<Wide>(), erases.transposed_right(16 * tile, 16 * tile));
    return solved;
  }

  // read = Diag(e) read + P U for a tile.
  DEVICE void add_scores(int slot, int tile, Accumulator& read,
                         const Factor (&factors)[kTiles]) const {
    const auto scores = storage.scores(slot);
    if (Decay) scale_tokens(read, storage.entering[slot] + 16 * tile);
#pragma unroll
    for (int other = 0; other < kTiles; other++)
      if (other <= tile)
        mma(read, factors[other], scores.transposed_right(16 * tile, 16 * other));
  }

  // The state at the end of the chunk. The products of a chunk are summed in accumulators of
  // their own and added once, since a tensor core may truncate its sums.
  DEVICE void add_chunk(const DeltaChunk<Shape>& chunk, int slot,
                        Accumulator (&written)[kTiles]) {
    Factor kept[kTiles];  // what is left of U
#pragma unroll
    for (int tile = 0; tile < kTiles; tile++) {
      if (Decay) scale_tokens(written[tile], storage.leaving[slot] + 16 * tile);
      kept[tile] = written[tile].template as_left<Wide>();
    }
    const float decay = Decay ? storage.chunk_decay[slot] : 1.0f;
#pragma unroll
    for (int k = 0; k < kBlocks; k++) {
      Accumulator added = {};
#pragma unroll
      for (int tile = 0; tile < kTiles; tile++)
        mma(added, kept[tile], chunk.keys().right(16 * tile, 16 * k));
      state[k].decay_add(decay, added);
    }
  }

  // Multiplies each token, a column of the block, by a factor of its own.
  DEVICE void scale_tokens(Accumulator& block, const float* factors) const {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float2 by = load_shared((const float2*)(factors + 8 * half + 2 * pair));
#pragma unroll
      for (int down = 0; down < 2; down++) {
        block.entry(down, half, 0) *= by.x;
        block.entry(down, half, 1) *= by.y;
      }
    }
  }
  // block = values - block
  DEVICE void subtract_from(Accumulator& block, const OperandFragment<Io>& values) const {
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const SplitPair<Io> both = values.pair(r);
      float &x = block.entry(r % 2, r / 2, 0), &y = block.entry(r % 2, r / 2, 1);
      x = both.first() - x;
      y = both.second() - y;
    }
  }

  // Stores a tile of the output in units of 16 bytes, through a strip of shared memory that
  // belongs to this warp.
  DEVICE void store_output(const Accumulator& block, int tile, int count, Stored* output,
                           i64 stride, float scale) const {
    constexpr int kPerUnit = 16 / sizeof(Stored), kUnits = 16 / kPerUnit;
    typedef SwizzledRows<kUnits> Layout;
    unsigned char* strip = storage.output + column / 16 * storage.kStripBytes;
    __syncwarp();  // the tile before has been read
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int down = i / 4, half = i / 2 % 2, token = 8 * half + 2 * pair + i % 2;
      const int at = group + 8 * down;
      unsigned char* address = strip + Layout::offset(token, at / kPerUnit);
      Stored rounded;
      store_rounded(&rounded, scale * block.entry(down, half, i % 2));
      store_shared((Stored*)address + at % kPerUnit, rounded);
    }
    __syncwarp();  // the strip is complete
#pragma unroll
    for (int i = lane_id(); i < 16 * kUnits; i += 32) {
      const int token = 16 * tile + i / kUnits, at = column + i % kUnits * kPerUnit;
      if (token >= count || at >= storage.columns) continue;
      const unsigned char* address = strip + Layout::offset(i / kUnits, i % kUnits);
      *(uint4*)(output + token * stride + at) = load_shared((const uint4*)address);
    }
  }

  // From and to global memory, from the first column of the block on.
  DEVICE void load(const float* source, const Sizes& sizes) {
    for_each(sizes.features, [&](float& x, int k, int n) {
      x = source[i64(k) * sizes.values + n];
    });
  }
  DEVICE void store(float* target, const Sizes& sizes) {
    for_each(sizes.features, [&](float& x, int k, int n) {
      target[i64(k) * sizes.values + n] = x;
    });
  }
  template <class Visit> DEVICE void for_each(int features, Visit visit) {
#pragma unroll
    for (int i = 0; i < 8 * kBlocks; i++) {
      const int down = i % 8 / 4, half = i / 2 % 2;
      const int k = 16 * (i / 8) + 8 * half + 2 * pair + i % 2;
      const int n = column + group + 8 * down;
      if (k < features && n < storage.columns)
        visit(state[i / 8].entry(down, half, i % 2), k, n);
    }
  }
};
