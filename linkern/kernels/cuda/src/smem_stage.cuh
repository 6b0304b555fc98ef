// Staging buffers in shared memory: cp.async writes rows there as they are in global memory,
// and `convert` applies the feature map and splits them into operands. 16-bit numbers that
// need neither are multiplied directly in the staging buffer.
#pragma once
#include "mma.cuh"

// Number i of some words.
template <class Half, int Count>
DEVICE float unpack(Half t, const Words<Count>& unit, int i) {
  return i % 2 ? high(t, unit.words[i / 2]) : low(t, unit.words[i / 2]);
}
template <int Count> DEVICE float unpack(float, const Words<Count>& unit, int i) {
  return __uint_as_float(unit.words[i]);
}

// A feature map. Where the result is rounded to 16 bits, a fast exponential is enough.
template <int Map, class Io> DEVICE float apply_map_for(float x) {
  if (Split<Io>::kParts > 1 || Map == IDENTITY || Map == RELU) return apply_map<Map>(x);
  const float power = __expf(x);
  return Map == ELU_PLUS_ONE && x > 0.0f ? x + 1.0f : power;
}

// `Threads` threads of a block work on it, from the first one on.
template <class Io, int Height, int Width, int Threads, int FirstThread = 0> struct Stage {
  typedef typename Split<Io>::Stored Stored;
  static constexpr int kPerUnit = 16 / sizeof(Stored), kUnits = Width / kPerUnit;
  static constexpr int kParts = Split<Io>::kParts;
  static constexpr int kRowsAtOnce = Threads / kUnits;  // rows that all threads copy at once
  static constexpr u32 kBytes = Height * Width * sizeof(Stored);
  // Units that a thread copies and converts at once, as many as there are registers for:
  // fewer of wide rows, and if some warps do nothing else.
  static constexpr int kAtOnce = Width > 64 ? 1 : FirstThread > 0 ? 2 : 4;
  static constexpr int kUnrolledGroups = FirstThread > 0 ? 1 : 4 / kAtOnce;
  static constexpr int kUnrolledCopies = FirstThread > 0 ? 2 : 4;
  typedef SwizzledRows<kUnits> Layout;
  unsigned char* bytes;

  DEVICE static int thread() { return int(threadIdx.x) - FirstThread; }
  // Offset of a row and a unit, given the row in the first of the blocks of rows at once.
  DEVICE static u32 offset(int block, int first, int unit) {
    return kRowsAtOnce % 8 == 0 ? Layout::offset(first, unit) + u32(block * kUnits * 16)
                                : Layout::offset(block + first, unit);
  }
  // The address of an entry.
  DEVICE const unsigned char* address(int row, int column) const {
    return bytes + Layout::offset(row, column / kPerUnit) + column % kPerUnit * sizeof(Stored);
  }
  DEVICE static bool behind(int row) { return Height % kRowsAtOnce > 0 && row >= Height; }

  // Starts to copy `rows` rows and `columns` columns; the rest of the tile becomes zero.
  DEVICE void copy(const Stored* source, i64 stride, int rows, int columns) const {
    if (rows == Height && columns >= Width)
      copy_tile<true>(source, stride, rows, columns);
    else
      copy_tile<false>(source, stride, rows, columns);
  }
  template <bool Whole>
  DEVICE void copy_tile(const Stored* source, i64 stride, int rows, int columns) const {
    const int first = thread() / kUnits, unit = thread() % kUnits;
    const SharedBase base = shared_base(bytes);
    const Stored* from = source + first * stride + unit * kPerUnit;
#pragma unroll kUnrolledCopies
    for (int block = 0; block < Height; block += kRowsAtOnce) {
      const int row = block + first;
      if (behind(row)) break;
      const bool valid = Whole || (row < rows && unit * kPerUnit < columns);
      cp_async(base, offset(block, first, unit), valid ? from : source, valid);
      from += kRowsAtOnce * stride;
    }
  }

  // Maps and splits what this thread has copied. Padding stays zero, whatever the map makes
  // of zero. Several units are loaded before the first is stored, which may be in its place.
  template <int Map>
  DEVICE void convert(SmemMatrix<Io, Height, Width> target, int rows, int columns) const {
    const int first = thread() / kUnits, unit = thread() % kUnits;
    const bool maps_zero = Map == ELU_PLUS_ONE || Map == EXP;
#pragma unroll kUnrolledGroups
    for (int group = 0; group < Height; group += kAtOnce * kRowsAtOnce) {
      Words<4> staged[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        const int block = group + i * kRowsAtOnce;
        if (block < Height && !behind(block + first))
          staged[i] = load_shared((const Words<4>*)(bytes + offset(block, first, unit)));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        const int block = group + i * kRowsAtOnce, row = block + first;
        if (block >= Height || behind(row)) break;
        const bool valid = !maps_zero || (row < rows && unit * kPerUnit < columns);
        store_unit<Map>(target, row, unit * kPerUnit, staged[i], valid);
      }
    }
  }
  template <int Map>
  DEVICE static void store_unit(SmemMatrix<Io, Height, Width> target, int row, int column,
                                const Words<4>& staged, bool valid) {
    Words<kPerUnit / 2> parts[kParts];
#pragma unroll
    for (int k = 0; k < kPerUnit; k += 2) {
      const SplitPair<Io> pair =
          SplitPair<Io>::from(apply_map_for<Map, Io>(unpack(Stored(), staged, k)),
                              apply_map_for<Map, Io>(unpack(Stored(), staged, k + 1)));
#pragma unroll
      for (int p = 0; p < kParts; p++) parts[p].words[k / 2] = valid ? pair.parts[p] : 0u;
    }
    unsigned char* to = target.bytes + target.offset(row, column);
#pragma unroll
    for (int p = 0; p < kParts; p++)
      store_shared((Words<kPerUnit / 2>*)(to + p * target.kPartBytes), parts[p]);
  }
};
