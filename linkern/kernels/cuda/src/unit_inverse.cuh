// The inverse of a unit lower triangular block of 16 x 16 entries.
#pragma once
#include "mma.cuh"

// Columns of 16 entries, at a pitch by which lanes of a warp write to different banks.
constexpr int kBlockPitch = 20;
typedef float BlockColumns[16][kBlockPitch];

// Stores a column of the inverse of I - B at a row and a column of a matrix of split numbers,
// given the columns of B: only what is below its diagonal is read. What an entry adds to all
// entries behind it is added as soon as it is known, so that few sums wait for each other;
// and nothing is stored meanwhile, so that loads do not wait for stores.
template <class Io, int Height, int Width>
DEVICE void store_inverse(SmemMatrix<Io, Height, Width> target, int start,
                          const BlockColumns& block, int column) {
  float entries[16];
#pragma unroll
  for (int row = 0; row < 16; row++) entries[row] = row == column ? 1.0f : 0.0f;
#pragma unroll
  for (int row = 0; row < 15; row++)
#pragma unroll
    for (int first = (row + 1) / 4 * 4; first < 16; first += 4) {
      typedef Vector<float, 4> Four;
      const Four by = load_shared((const Four*)&block[row][first]);
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (first + i > row) entries[first + i] += by.entries[i] * entries[row];
    }
#pragma unroll
  for (int row = 0; row < 16; row++)
    target.store_entry(start + row, start + column, entries[row]);
}
