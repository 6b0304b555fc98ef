// 16 columns of the state of a head, in the registers of one warp, and their output.
//
// All is transposed: rows are columns of the values, so what was summed in registers is the
// left operand of the next product.
#pragma once
#include "head_slice.cuh"

template <class Shape, class Storage> struct StateColumns {
  typedef typename Shape::Io Io;
  typedef typename Split<Io>::Stored Stored;
  static constexpr int kBlocks = Shape::kFeatureBlocks;
  Storage& storage;
  const int column, group, pair;
  Accumulator state[kBlocks] = {};  // transposed: columns of the values, features

  DEVICE StateColumns(Storage& storage, int warp)
      : storage(storage), column(16 * warp), group(lane_id() / 4), pair(lane_id() % 4) {}

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
  // belongs to this warp: the warp has to wait between two of its tiles.
  DEVICE void store_output(const Accumulator& block, int tile, int count, Stored* output,
                           i64 stride, float scale) const {
    constexpr int kPerUnit = 16 / sizeof(Stored), kUnits = 16 / kPerUnit;
    typedef SwizzledRows<kUnits> Layout;
    unsigned char* strip = storage.output + column / 16 * storage.kStripBytes;
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
      if (token >= count || at >= storage.slice.columns) continue;
      const unsigned char* address = strip + Layout::offset(i / kUnits, i % kUnits);
      *(uint4*)(output + token * stride + at) = load_shared((const uint4*)address);
    }
  }

  // From and to rows of float32 in global memory, from the first column of the block on:
  // eight lanes have 32 contiguous bytes.
  DEVICE void load(const float* source, const Sizes& sizes) {
    for_each_entry(source, sizes, [](float& x, const float& y) { x = y; });
  }
  DEVICE void store(float* target, const Sizes& sizes) {
    for_each_entry(target, sizes, [](float& x, float& y) { y = x; });
  }
  DEVICE void store_tile(Accumulator& block, int tile, int count, float* target,
                         int stride) const {
    float* place = place_of(target, 16 * tile, stride);
    visit_block(block, place, count - 16 * tile, stride, [](float& x, float& y) { y = x; });
  }

 private:
  // The address of the first entry of this lane in a block that starts at a row.
  template <class T> DEVICE T* place_of(T* rows, int row, int stride) const {
    return rows + i64(row + 2 * pair) * stride + column + group;
  }
  template <class T, class Visit>
  DEVICE void for_each_entry(T* rows, const Sizes& sizes, Visit visit) {
    T* place = place_of(rows, 0, sizes.values);
#pragma unroll
    for (int k = 0; k < kBlocks; k++)
      visit_block(state[k], place, sizes.features - 16 * k, sizes.values, visit);
  }
  // Visits the entries of a block in the first `count` rows, and sets the address to that of
  // the next block. It goes from one row to the next, so that a store is one predicated
  // instruction and no branch.
  template <class T, class Visit>
  DEVICE void visit_block(Accumulator& block, T*& place, int count, int stride,
                          Visit visit) const {
    // Read once: stores to global memory could change it, as far as the compiler knows.
    const int columns = storage.slice.columns - column - group;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int half = i / 2, row = 8 * half + 2 * pair + i % 2;
#pragma unroll
      for (int down = 0; down < 2; down++)
        if (row < count && 8 * down < columns)
          visit(block.entry(down, half, i % 2), place[8 * down]);
      place += i % 2 == 0 ? stride : 7 * stride;
    }
  }
};
