// Staging buffers in shared memory: cp.async writes rows there as they are in global memory,
// and `convert` applies the feature map and splits them into operands. 16-bit numbers that
// need neither are multiplied directly in the staging buffer.
#pragma once
#include "mma.cuh"

template <int Count> struct alignas(4 * Count) Words { u32 words[Count]; };

// Number i of a 16-byte unit.
template <class Half> DEVICE float unpack(Half t, const Words<4>& unit, int i) {
  return i % 2 ? high(t, unit.words[i / 2]) : low(t, unit.words[i / 2]);
}
DEVICE float unpack(float, const Words<4>& unit, int i) {
  return __uint_as_float(unit.words[i]);
}

// A feature map. Where the result is rounded to 16 bits, a fast exponential is enough.
template <int Map, class Io> DEVICE float apply_map_for(float x) {
  if (Split<Io>::kParts > 1 || Map == IDENTITY || Map == RELU) return apply_map<Map>(x);
  const float power = __expf(x);
  return Map == ELU_PLUS_ONE && x > 0.0f ? x + 1.0f : power;
}

template <class Io, int Height, int Width, int Threads> struct Stage {
  typedef typename Split<Io>::Stored Stored;
  static constexpr int kPerUnit = 16 / sizeof(Stored), kUnits = Width / kPerUnit;
  static constexpr int kParts = Split<Io>::kParts;
  static constexpr int kRowsAtOnce = Threads / kUnits;  // rows that all threads copy at once
  static constexpr u32 kBytes = Height * Width * sizeof(Stored);
  typedef SwizzledRows<kUnits> Layout;
  unsigned char* bytes;

  // Starts to copy `rows` rows and `columns` columns; the rest of the tile becomes zero.
  DEVICE void copy(const Stored* source, i64 stride, int rows, int columns) const {
#pragma unroll
    for (int block = 0; block < Height; block += kRowsAtOnce) {
      const int row = block + threadIdx.x / kUnits, unit = threadIdx.x % kUnits;
      if (row >= Height) break;
      const bool valid = row < rows && unit * kPerUnit < columns;
      const Stored* from = valid ? source + row * stride + unit * kPerUnit : source;
      cp_async(shared_base(bytes), Layout::offset(row, unit), from, valid);
    }
  }

  // Maps and splits what this thread has copied. Padding stays zero, whatever the map makes
  // of zero.
  template <int Map>
  DEVICE void convert(SmemMatrix<Io, Height, Width> target, int rows, int columns) const {
#pragma unroll
    for (int block = 0; block < Height; block += kRowsAtOnce) {
      const int row = block + threadIdx.x / kUnits, unit = threadIdx.x % kUnits;
      const int column = unit * kPerUnit;
      if (row >= Height) break;
      const bool valid = row < rows && column < columns;
      const unsigned char* from = bytes + Layout::offset(row, unit);
      const Words<4> staged = load_shared((const Words<4>*)from);
      Words<kPerUnit / 2> parts[kParts];
#pragma unroll
      for (int k = 0; k < kPerUnit; k += 2) {
        const float first = unpack(Stored(), staged, k);
        const float second = unpack(Stored(), staged, k + 1);
        const SplitPair<Io> pair = SplitPair<Io>::from(apply_map_for<Map, Io>(first),
                                                       apply_map_for<Map, Io>(second));
#pragma unroll
        for (int p = 0; p < kParts; p++)
          parts[p].words[k / 2] = valid ? pair.parts[p] : 0u;
      }
      unsigned char* to = target.bytes + target.offset(row, column);
#pragma unroll
      for (int p = 0; p < kParts; p++)
        store_shared((Words<kPerUnit / 2>*)(to + p * target.kPartBytes), parts[p]);
    }
  }
};
