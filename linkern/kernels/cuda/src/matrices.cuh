// Matrices as tensor cores multiply them: blocks of 16 x 16 numbers, which lie in shared
// memory, are sides of products, and come out as sums in float32.
//
// A float32 goes as three numbers of 16 bits whose sum it is, its planes. Of the nine
// products of two of them the six largest are taken; the others are below its last bit.
// A number of 16 bits is its own only plane, or, where sums may leave the range of float16,
// goes as two of bfloat16, which are exactly it.
//
// Lane 4 g + t of a warp has rows g and g + 8 of a block, and of their columns 2 t,
// 2 t + 1, 2 t + 8 and 2 t + 9.
#pragma once
#include "common.cuh"

constexpr u32 kAllLanes = 0xffffffffu;

DEVICE int own_lane() { return int(threadIdx.x) % 32; }

// -- planes

struct f16_in_two {};

template <class Io> struct Planes {
  typedef Io Stored;  // as it is in global memory
  typedef Io Number;
  static constexpr int kCount = 1;
  static constexpr bool kNarrow = false;
};
template <> struct Planes<f16> {
  typedef f16 Stored;
  typedef f16 Number;
  static constexpr int kCount = 1;
  static constexpr bool kNarrow = true;  // a sum of products may leave its range
};
template <> struct Planes<f16_in_two> {
  typedef f16 Stored;
  typedef bf16 Number;
  static constexpr int kCount = 2;
  static constexpr bool kNarrow = false;
};
template <> struct Planes<float> {
  typedef float Stored;
  typedef bf16 Number;
  static constexpr int kCount = 3;
  static constexpr bool kNarrow = false;
};

// What numbers up to the largest of some are divided by to stay in range: a power of two.
template <class Io> DEVICE float unit_of(float largest) {
  const float enough = 8192.0f;
  return Planes<Io>::kNarrow && largest > enough ? power_of_two(largest) / enough : 1.0f;
}

// Two neighbours in a row, the largest plane first.
template <class Io> struct Pair {
  typedef typename Planes<Io>::Number Number;
  u32 planes[Planes<Io>::kCount];

  DEVICE static Pair of(float first, float second) {
    Pair pair;
    pair.planes[0] = pack(Number(), first, second);
#pragma unroll
    for (int p = 1; p < Planes<Io>::kCount; p++) {
      first -= low(Number(), pair.planes[p - 1]);
      second -= high(Number(), pair.planes[p - 1]);
      pair.planes[p] = pack(Number(), first, second);
    }
    return pair;
  }
  DEVICE float first() const {
    float sum = low(Number(), planes[Planes<Io>::kCount - 1]);
#pragma unroll
    for (int p = Planes<Io>::kCount - 2; p >= 0; p--) sum += low(Number(), planes[p]);
    return sum;
  }
  DEVICE float second() const {
    float sum = high(Number(), planes[Planes<Io>::kCount - 1]);
#pragma unroll
    for (int p = Planes<Io>::kCount - 2; p >= 0; p--) sum += high(Number(), planes[p]);
    return sum;
  }
};

// -- products

// One side of a product. On the left, pair r of a lane is in row g + 8 (r % 2) and begins
// at column 2 t + 8 (r / 2); on the right, it is in column g + 8 (r / 2) and begins at row
// 2 t + 8 (r % 2).
template <class Io> struct Side {
  u32 planes[Planes<Io>::kCount][4];

  DEVICE void put(int r, const Pair<Io>& pair) {
#pragma unroll
    for (int p = 0; p < Planes<Io>::kCount; p++) planes[p][r] = pair.planes[p];
  }
  DEVICE Pair<Io> pair(int r) const {
    Pair<Io> found;
#pragma unroll
    for (int p = 0; p < Planes<Io>::kCount; p++) found.planes[p] = planes[p][r];
    return found;
  }
};

// Entry r of half h is in row g + 8 (r / 2) and in column 8 h + 2 t + r % 2.
struct Sums {
  float halves[2][4];

  DEVICE float& entry(int row, int half, int column) {
    return halves[half][2 * row + column];
  }
  DEVICE float entry(int row, int half, int column) const {
    return halves[half][2 * row + column];
  }
  // The same of another matrix is added to what is left of this one.
  DEVICE void keep(float left, const Sums& added) {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int r = 0; r < 4; r++)
        halves[half][r] = left * halves[half][r] + added.halves[half][r];
  }
  // Of the finite entries of this lane, in row g or g + 8.
  DEVICE float largest(int row) const {
    float found = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float size = fabsf(entry(row, i / 2, i % 2));
      if (size <= 3.4028235e38f) found = max(found, size);
    }
    return found;
  }
  // Row g by the first factor, row g + 8 by the second.
  DEVICE void scale(const float (&by)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int r = 0; r < 4; r++) halves[half][r] *= by[r / 2];
  }
  template <class Io> DEVICE Side<Io> as_left() const {
    Side<Io> side;
#pragma unroll
    for (int r = 0; r < 4; r++)
      side.put(r, Pair<Io>::of(entry(r % 2, r / 2, 0), entry(r % 2, r / 2, 1)));
    return side;
  }
};

// The smallest products are added first.
template <class Io>
DEVICE void multiply_add(Sums& sums, const Side<Io>& left, const Side<Io>& right) {
  typedef typename Planes<Io>::Number Number;
#pragma unroll
  for (int order = Planes<Io>::kCount - 1; order >= 0; order--)
#pragma unroll
    for (int p = 0; p <= order; p++) {
      const u32(&b)[4] = right.planes[order - p];
      multiply_add(Number(), sums.halves[0], left.planes[p], b[0], b[1]);
      multiply_add(Number(), sums.halves[1], left.planes[p], b[2], b[3]);
    }
}

// Adds the sum of each row of the left side: its product with a column of ones.
template <class Io> DEVICE void add_rows(float (&sums)[4], const Side<Io>& left) {
  typedef typename Planes<Io>::Number Number;
  const u32 ones = pack(Number(), 1.0f, 1.0f);
#pragma unroll
  for (int p = Planes<Io>::kCount - 1; p >= 0; p--)
    multiply_add(Number(), sums, left.planes[p], ones, ones);
}

// Over the four lanes that have parts of it.
DEVICE float sum_of_row(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// -- in shared memory

// Rows of so many units of 16 bytes, a power of two. Units are exchanged within each row so
// that those of one column lie, in any eight rows in line, in different groups of banks.
template <int Units> struct Tile {
  static constexpr int kExchanged = Units < 8 ? Units : 8;

  DEVICE static u32 place(int row, int unit) {
    return u32(row * Units + (unit ^ (row * kExchanged / 8 % kExchanged))) * 16;
  }
  // Of a row and a unit within a block of 16 rows and two units. What belongs to the lane
  // is the same for all blocks.
  DEVICE static u32 place_in_block(int first_row, int first_unit, int row, int unit) {
    return (place(row, unit) ^ u32(first_unit * 16)) + u32(first_row * Units * 16);
  }
};

template <class Io, int Height, int Width> struct Matrix {
  typedef Tile<Width / 8> Plane;
  static constexpr int kPlanes = Planes<Io>::kCount;
  static constexpr u32 kPlaneBytes = Height * Width * 2, kBytes = kPlanes * kPlaneBytes;
  unsigned char* bytes;

  DEVICE static u32 place(int row, int column) {
    return Plane::place(row, column / 8) + column % 8 * 2;
  }

  // The block at a row and a column, which are multiples of 16, or its transpose.
  DEVICE Side<Io> left(int row, int column) const {
    const int lane = own_lane();
    return load<false>(Plane::place_in_block(row, column / 8, lane % 16, lane / 16));
  }
  DEVICE Side<Io> right(int row, int column) const {
    const int lane = own_lane();
    return load<true>(Plane::place_in_block(row, column / 8, lane % 16, lane / 16));
  }
  DEVICE Side<Io> transposed_left(int row, int column) const {
    const int lane = own_lane();
    return load<true>(
        Plane::place_in_block(row, column / 8, lane % 8 + lane / 16 * 8, lane / 8 % 2));
  }
  DEVICE Side<Io> transposed_right(int row, int column) const {
    const int lane = own_lane();
    return load<false>(
        Plane::place_in_block(row, column / 8, lane % 8 + lane / 16 * 8, lane / 8 % 2));
  }

  DEVICE void put(int row, int column, const Sums& sums) const {
    const int group = own_lane() / 4, pair = own_lane() % 4;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int down = 0; down < 2; down++) {
        const Pair<Io> both =
            Pair<Io>::of(sums.entry(down, half, 0), sums.entry(down, half, 1));
        u32 place = Plane::place_in_block(row + 8 * down, column / 8 + half, group, 0);
#pragma unroll
        for (int p = 0; p < kPlanes; p++)
          store_shared((u32*)(bytes + p * kPlaneBytes + place + 4 * pair), both.planes[p]);
      }
  }

 private:
  template <bool Transposed> DEVICE Side<Io> load(u32 place) const {
    const SharedBase base = shared_base(bytes);
    Side<Io> side;
#pragma unroll
    for (int p = 0; p < kPlanes; p++) {
      if (Transposed)
        load_matrices_transposed(side.planes[p], base, place + p * kPlaneBytes);
      else
        load_matrices(side.planes[p], base, place + p * kPlaneBytes);
    }
    return side;
  }
};
