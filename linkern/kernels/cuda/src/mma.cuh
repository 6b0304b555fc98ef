// Matrix products on tensor cores: 16 x 16 blocks in shared memory are loaded as operand
// fragments, multiplied, and accumulated in float32.
//
// A float32 is split into three bfloat16 parts whose sum it is (bf16x3). Of the nine
// products of two parts the six largest are summed; the other three are below the last bit.
// In two parts it keeps 16 bits, and three of four products are summed (`f32_split`).
// A 16-bit number is its own only part. Where sums may leave the range of float16, a float16
// is split into two bfloat16 parts, which represent it exactly. Operands of different dtypes
// are multiplied if their parts have one dtype: a bfloat16 with a float32 is three products.
//
// Lane 4 g + t of a warp has rows g and g + 8 of a block, and columns 2 t, 2 t + 1, 2 t + 8
// and 2 t + 9 of these rows.
#pragma once
#include "common.cuh"

constexpr u32 kAllLanes = 0xffffffffu;

DEVICE int lane_id() { return int(threadIdx.x % 32); }

// -- splitting numbers into 16-bit parts

struct f16_split {};
struct f32_split {};

template <class Io> struct Split {
  typedef Io Stored;   // dtype in global memory
  typedef Io Operand;  // dtype of a part
  static constexpr int kParts = 1;
  static constexpr int kOrder = 0;  // products of parts p, q with p + q <= kOrder are summed
  static constexpr bool kNarrowRange = false;
};
template <> struct Split<f16> {
  typedef f16 Stored;
  typedef f16 Operand;
  static constexpr int kParts = 1, kOrder = 0;
  static constexpr bool kNarrowRange = true;  // a sum of products may overflow
};
template <> struct Split<f16_split> {
  typedef f16 Stored;
  typedef bf16 Operand;
  static constexpr int kParts = 2, kOrder = 1;
  static constexpr bool kNarrowRange = false;
};
template <> struct Split<float> {
  typedef float Stored;
  typedef bf16 Operand;
  static constexpr int kParts = 3, kOrder = 2;
  static constexpr bool kNarrowRange = false;
};

template <> struct Split<f32_split> {
  typedef float Stored;
  typedef bf16 Operand;
  static constexpr int kParts = 2, kOrder = 1;
  static constexpr bool kNarrowRange = false;
};

// Power of two by which numbers are divided to stay in range, given the largest of them.
template <class Io> DEVICE float range_scale(float largest) {
  const float limit = 8192.0f;
  return Split<Io>::kNarrowRange && largest > limit ? power_of_two(largest) / limit : 1.0f;
}

// Two neighbouring entries of a row, split; the largest parts come first.
template <class Io> struct SplitPair {
  typedef typename Split<Io>::Operand Operand;
  u32 parts[Split<Io>::kParts];

  DEVICE static SplitPair from(float first, float second) {
    SplitPair pair;
    pair.parts[0] = pack(Operand(), first, second);
#pragma unroll
    for (int p = 1; p < Split<Io>::kParts; p++) {
      first -= low(Operand(), pair.parts[p - 1]);
      second -= high(Operand(), pair.parts[p - 1]);
      pair.parts[p] = pack(Operand(), first, second);
    }
    return pair;
  }
  DEVICE float first() const {
    float sum = low(Operand(), parts[Split<Io>::kParts - 1]);
#pragma unroll
    for (int p = Split<Io>::kParts - 2; p >= 0; p--) sum += low(Operand(), parts[p]);
    return sum;
  }
  DEVICE float second() const {
    float sum = high(Operand(), parts[Split<Io>::kParts - 1]);
#pragma unroll
    for (int p = Split<Io>::kParts - 2; p >= 0; p--) sum += high(Operand(), parts[p]);
    return sum;
  }
};

// -- products

// A block as an operand. As left operand, pair r of a lane is in row g + 8 (r % 2) and
// begins at column 2 t + 8 (r / 2); as right operand, it is in column g + 8 (r / 2) and
// begins at row 2 t + 8 (r % 2).
template <class Io> struct OperandFragment {
  u32 parts[Split<Io>::kParts][4];

  DEVICE void set(int r, const SplitPair<Io>& pair) {
#pragma unroll
    for (int p = 0; p < Split<Io>::kParts; p++) parts[p][r] = pair.parts[p];
  }
  DEVICE SplitPair<Io> pair(int r) const {
    SplitPair<Io> pair;
#pragma unroll
    for (int p = 0; p < Split<Io>::kParts; p++) pair.parts[p] = parts[p][r];
    return pair;
  }
};

// A block of sums. Entry r of half h is in row g + 8 (r / 2) and column 8 h + 2 t + r % 2.
struct Accumulator {
  float halves[2][4];

  // Entry in row g + 8 row and column 8 half + 2 t + column.
  DEVICE float& entry(int row, int half, int column) {
    return halves[half][2 * row + column];
  }
  DEVICE float entry(int row, int half, int column) const {
    return halves[half][2 * row + column];
  }
  // this = decay * this + added
  DEVICE void decay_add(float decay, const Accumulator& added) {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int r = 0; r < 4; r++)
        halves[half][r] = decay * halves[half][r] + added.halves[half][r];
  }
  DEVICE void scale(float factor) {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int r = 0; r < 4; r++) halves[half][r] *= factor;
  }
  // Largest absolute value of the finite entries of this lane in row g or g + 8.
  DEVICE float max_abs(int row) const {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float size = fabsf(entry(row, i / 2, i % 2));
      if (size <= 3.4028235e38f) largest = max(largest, size);
    }
    return largest;
  }
  // Multiplies row g by the first factor and row g + 8 by the second.
  DEVICE void scale_rows(const float (&factors)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int r = 0; r < 4; r++) halves[half][r] *= factors[r / 2];
  }
  template <class Io> DEVICE OperandFragment<Io> as_left() const {
    OperandFragment<Io> fragment;
#pragma unroll
    for (int r = 0; r < 4; r++)
      fragment.set(
          r, SplitPair<Io>::from(entry(r % 2, r / 2, 0), entry(r % 2, r / 2, 1)));
    return fragment;
  }
};

// accumulator += left right. The smallest products of parts are added first.
template <class Left, class Right>
DEVICE void mma(Accumulator& accumulator, const OperandFragment<Left>& left,
                const OperandFragment<Right>& right) {
  typedef typename Split<Left>::Operand Operand;
  constexpr int kOrder = Split<Left>::kOrder > Split<Right>::kOrder ? Split<Left>::kOrder
                                                                    : Split<Right>::kOrder;
#pragma unroll
  for (int order = kOrder; order >= 0; order--)
#pragma unroll
    for (int p = 0; p < Split<Left>::kParts; p++) {
      const int q = order - p;
      if (q < 0 || q >= Split<Right>::kParts) continue;
      const u32(&b)[4] = right.parts[q];
      mma_sync(Operand(), accumulator.halves[0], left.parts[p], b[0], b[1]);
      mma_sync(Operand(), accumulator.halves[1], left.parts[p], b[2], b[3]);
    }
}

// Adds the product of the left operand and eight columns, of which a lane has two pairs: all
// parts of the left operand are multiplied with them.
template <class Io>
DEVICE void mma_columns(float (&sums)[4], const OperandFragment<Io>& left, u32 first,
                        u32 second) {
#pragma unroll
  for (int p = Split<Io>::kParts - 1; p >= 0; p--)
    mma_sync(typename Split<Io>::Operand(), sums, left.parts[p], first, second);
}
// Adds the row sums of the left operand to each column: its product with ones.
template <class Io>
DEVICE void mma_row_sums(float (&sums)[4], const OperandFragment<Io>& left) {
  const u32 ones = pack(typename Split<Io>::Operand(), 1.0f, 1.0f);
  mma_columns(sums, left, ones, ones);
}

// The sum over the four lanes that share a row.
DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// -- tiles in shared memory

template <int Count> struct alignas(4 * Count) Words { u32 words[Count]; };

// Layout of rows of `Units` 16-byte units, a power of two. Units are swizzled within each
// row, so that those of one column in eight consecutive rows use different banks.
template <int Units> struct SwizzledRows {
  static constexpr int kSwizzled = Units < 8 ? Units : 8;

  DEVICE static u32 offset(int row, int unit) {
    return u32(row * Units + (unit ^ (row * kSwizzled / 8 % kSwizzled))) * 16;
  }
  // Offset of a row and a unit inside a block of 16 rows and two units. The part that
  // depends on the lane is the same for all blocks.
  DEVICE static u32 offset_in_block(int first_row, int first_unit, int row, int unit) {
    return (offset(row, unit) ^ u32(first_unit * 16)) + u32(first_row * Units * 16);
  }
};

// A matrix of split numbers: one swizzled tile of 16-bit numbers for each part.
template <class Io, int Height, int Width> struct SmemMatrix {
  typedef SwizzledRows<Width / 8> Layout;
  static constexpr int kParts = Split<Io>::kParts;
  static constexpr u32 kPartBytes = Height * Width * 2, kBytes = kParts * kPartBytes;
  unsigned char* bytes;

  DEVICE static u32 offset(int row, int column) {
    return Layout::offset(row, column / 8) + column % 8 * 2;
  }

  // The block at a row and a column, multiples of 16, or its transpose, as an operand.
  DEVICE OperandFragment<Io> left(int row, int column) const {
    const int lane = lane_id();
    return load<false>(Layout::offset_in_block(row, column / 8, lane % 16, lane / 16));
  }
  DEVICE OperandFragment<Io> right(int row, int column) const {
    const int lane = lane_id();
    return load<true>(Layout::offset_in_block(row, column / 8, lane % 16, lane / 16));
  }
  DEVICE OperandFragment<Io> transposed_left(int row, int column) const {
    const int lane = lane_id();
    return load<true>(
        Layout::offset_in_block(row, column / 8, lane % 8 + lane / 16 * 8, lane / 8 % 2));
  }
  DEVICE OperandFragment<Io> transposed_right(int row, int column) const {
    const int lane = lane_id();
    return load<false>(
        Layout::offset_in_block(row, column / 8, lane % 8 + lane / 16 * 8, lane / 8 % 2));
  }
  // Eight rows from a row on, a multiple of 8, as both halves of the columns of an operand.
  DEVICE OperandFragment<Io> transposed_right_rows(int row, int column) const {
    const int lane = lane_id();
    return load<false>(Layout::offset_in_block(row, column / 8, lane % 8, lane / 8 % 2));
  }

  DEVICE void store(int row, int column, const Accumulator& block) const {
    const int group = lane_id() / 4, pair = lane_id() % 4;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int down = 0; down < 2; down++) {
        const SplitPair<Io> both =
            SplitPair<Io>::from(block.entry(down, half, 0), block.entry(down, half, 1));
        const u32 offset =
            Layout::offset_in_block(row + 8 * down, column / 8 + half, group, 0);
#pragma unroll
        for (int p = 0; p < kParts; p++)
          store_shared((u32*)(bytes + p * kPartBytes + offset + 4 * pair), both.parts[p]);
      }
  }
  // Stores the entry at a row and a column.
  DEVICE void store_entry(int row, int column, float entry) const {
    const SplitPair<Io> both = SplitPair<Io>::from(entry, 0.0f);
#pragma unroll
    for (int p = 0; p < kParts; p++)
      store_shared((u16*)(bytes + p * kPartBytes + offset(row, column)), u16(both.parts[p]));
  }
  // Stores 2, 4 or 8 neighbouring entries of a row, from a multiple of their number on.
  template <int Count>
  DEVICE void store_entries(int row, int column, const float (&entries)[Count]) const {
    Words<Count / 2> parts[kParts];
#pragma unroll
    for (int i = 0; i < Count; i += 2) {
      const SplitPair<Io> both = SplitPair<Io>::from(entries[i], entries[i + 1]);
#pragma unroll
      for (int p = 0; p < kParts; p++) parts[p].words[i / 2] = both.parts[p];
    }
#pragma unroll
    for (int p = 0; p < kParts; p++)
      store_shared((Words<Count / 2>*)(bytes + p * kPartBytes + offset(row, column)), parts[p]);
  }

 private:
  template <bool Transposed> DEVICE OperandFragment<Io> load(u32 offset) const {
    const SharedBase base = shared_base(bytes);
    OperandFragment<Io> fragment;
#pragma unroll
    for (int p = 0; p < kParts; p++) {
      if (Transposed)
        ldmatrix_transposed(fragment.parts[p], base, offset + p * kPartBytes);
      else
        ldmatrix(fragment.parts[p], base, offset + p * kPartBytes);
    }
    return fragment;
  }
};
