// The inverse of a unit lower triangular block of 16 x 16 entries.
#pragma once
#include "mma.cuh"

// Rows of 16 numbers in shared memory: 24 words apart, and 4 more after every four rows. So
// lanes write to different banks if they store pairs, as an accumulator has them, and also if
// each of them stores one number of eight rows.
struct alignas(16) BlockRows {
  float entries[4][100];

  DEVICE float* row(int number) { return entries[number / 4] + number % 4 * 24; }
  DEVICE const float* row(int number) const { return entries[number / 4] + number % 4 * 24; }
};

// Stores a row of the inverse of I - B in a tile of a matrix of split numbers that starts at
// an entry of the diagonal. Of B only what is below its diagonal is read. What an entry adds
// to all entries before it is added as soon as it is known, so that few sums wait for each
// other; and the row is stored at last, so that loads do not wait for stores.
template <class Io, int Height, int Width>
DEVICE void store_inverse(SmemMatrix<Io, Height, Width> target, int start,
                          const BlockRows& block, int row) {
  float entries[2][8];
#pragma unroll
  for (int n = 0; n < 16; n++) entries[n / 8][n % 8] = n == row ? 1.0f : 0.0f;
#pragma unroll
  for (int other = 15; other > 0; other--) {
#pragma unroll
    for (int first = 0; first < other; first += 4) {
      typedef Vector<float, 4> Four;
      const Four by = load_shared((const Four*)(block.row(other) + first));
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int n = first + i;
        if (n < other)
          entries[n / 8][n % 8] += entries[other / 8][other % 8] * by.entries[i];
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; half++)
    target.store_entries(start + row, start + 8 * half, entries[half]);
}
