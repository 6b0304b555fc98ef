// Where rows from global memory land in shared memory, as they are, before they are mapped
// and split into what is multiplied. Numbers of 16 bits stay where they have landed.
#pragma once
#include "matrices.cuh"

template <int Count> struct alignas(4 * Count) Words { u32 of[Count]; };

// Number i of 16 bytes.
template <class Half> DEVICE float number(Half t, const Words<4>& unit, int i) {
  return i % 2 ? high(t, unit.of[i / 2]) : low(t, unit.of[i / 2]);
}
DEVICE float number(float, const Words<4>& unit, int i) {
  return __uint_as_float(unit.of[i]);
}

// Where the result has 16 bits, an exponential need not be right to the last of 24.
template <int Map, class Io> DEVICE float mapped(float x) {
  if (Planes<Io>::kCount > 1 || Map == IDENTITY || Map == RELU) return feature<Map>(x);
  const float power = __expf(x);
  return Map == ELU_PLUS_ONE && x > 0.0f ? x + 1.0f : power;
}

template <class Io, int Height, int Width, int Threads> struct Landing {
  typedef typename Planes<Io>::Stored Stored;
  static constexpr int kInUnit = 16 / sizeof(Stored), kUnits = Width / kInUnit;
  static constexpr int kPlanes = Planes<Io>::kCount;
  static constexpr int kAtOnce = Threads / kUnits;  // rows that all threads copy at once
  static constexpr u32 kBytes = Height * Width * sizeof(Stored);
  typedef Tile<kUnits> Place;
  unsigned char* bytes;

  // Begins to copy so many rows and columns; the others are zeros.
  DEVICE void copy(const Stored* from, i64 stride, int rows, int columns) const {
#pragma unroll
    for (int block = 0; block < Height; block += kAtOnce) {
      const int row = block + threadIdx.x / kUnits, unit = threadIdx.x % kUnits;
      if (row >= Height) break;
      const bool there = row < rows && unit * kInUnit < columns;
      const Stored* source = there ? from + row * stride + unit * kInUnit : from;
      copy_async(shared_base(bytes), Place::place(row, unit), source, there);
    }
  }

  // Maps and splits what this thread has copied. What is not there stays zero, whatever
  // the map makes of zero.
  template <int Map>
  DEVICE void prepare(Matrix<Io, Height, Width> to, int rows, int columns) const {
#pragma unroll
    for (int block = 0; block < Height; block += kAtOnce) {
      const int row = block + threadIdx.x / kUnits, unit = threadIdx.x % kUnits;
      const int column = unit * kInUnit;
      if (row >= Height) break;
      const bool there = row < rows && column < columns;
      const unsigned char* from = bytes + Place::place(row, unit);
      const Words<4> landed = load_shared((const Words<4>*)from);
      Words<kInUnit / 2> planes[kPlanes];
#pragma unroll
      for (int k = 0; k < kInUnit; k += 2) {
        const float first = number(Stored(), landed, k);
        const float second = number(Stored(), landed, k + 1);
        const Pair<Io> pair = Pair<Io>::of(mapped<Map, Io>(first), mapped<Map, Io>(second));
#pragma unroll
        for (int p = 0; p < kPlanes; p++) planes[p].of[k / 2] = there ? pair.planes[p] : 0u;
      }
      unsigned char* place = to.bytes + to.place(row, column);
#pragma unroll
      for (int p = 0; p < kPlanes; p++)
        store_shared((Words<kInUnit / 2>*)(place + p * to.kPlaneBytes), planes[p]);
    }
  }
};
