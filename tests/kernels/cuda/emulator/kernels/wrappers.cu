// One kernel for each wrapper of device.cuh, for tests in the emulator and on a GPU.
#include "device.cuh"

struct Bits {
  const u32* given;
  const float* numbers;
  u32* found;
  float* sums;
};

// found = pack(number, number); sums = the halves of `given`.
template <class T> __global__ void halves(Bits of) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  of.found[i] = pack(T(), of.numbers[2 * i], of.numbers[2 * i + 1]);
  of.sums[2 * i] = low(T(), of.given[i]);
  of.sums[2 * i + 1] = high(T(), of.given[i]);
}

// 32 rows of 16 bytes: four words for each lane, of the matrices or their transposes.
template <bool Transposed> __global__ void matrices(Bits of) {
  SHARED_MEMORY(shared);
  const int lane = threadIdx.x;
  uint4 row = reinterpret_cast<const uint4*>(of.given)[lane];
  store_shared(reinterpret_cast<uint4*>(shared) + lane, row);
  __syncwarp();
  u32 found[4];
  if (Transposed) {
    ldmatrix_transposed(found, shared_base(shared), lane * 16);
  } else {
    ldmatrix(found, shared_base(shared), lane * 16);
  }
  for (int i = 0; i < 4; i++) of.found[lane * 4 + i] = found[i];
}

// given: a (four words) and b (two) of each lane; numbers: four sums of each lane.
template <class T> __global__ void product(Bits of) {
  const int lane = threadIdx.x;
  u32 a[4];
  float sum[4];
  for (int i = 0; i < 4; i++) {
    a[i] = of.given[lane * 6 + i];
    sum[i] = of.numbers[lane * 4 + i];
  }
  mma_sync(T(), sum, a, of.given[lane * 6 + 4], of.given[lane * 6 + 5]);
  for (int i = 0; i < 4; i++) of.sums[lane * 4 + i] = sum[i];
}

// 16 bytes for each lane; zeros for odd lanes, whose source must not be read.
template <class T> __global__ void copied(Bits of) {
  SHARED_MEMORY(shared);
  const int lane = threadIdx.x;
  const bool there = lane % 2 == 0;
  const u32* source = there ? of.given + lane * 4 : nullptr;
  cp_async(shared_base(shared), lane * 16, source, there);
  cp_async_commit();
  cp_async_wait<0>();
  __syncwarp();
  uint4 row = load_shared(reinterpret_cast<const uint4*>(shared) + lane);
  reinterpret_cast<uint4*>(of.found)[lane] = row;
}

// 16 bytes for each lane in each of two groups; the second need not be complete with the first.
template <class T> __global__ void copied_in_groups(Bits of) {
  SHARED_MEMORY(shared);
  const int lane = threadIdx.x;
  const uint4* rows = reinterpret_cast<const uint4*>(shared);
  for (int group = 0; group < 2; group++) {
    const int row = 32 * group + lane;
    cp_async(shared_base(shared), row * 16, of.given + row * 4, true);
    cp_async_commit();
  }
  cp_async_wait<1>();
  reinterpret_cast<uint4*>(of.found)[lane] = load_shared(rows + lane);
  cp_async_wait<0>();
  reinterpret_cast<uint4*>(of.found)[32 + lane] = load_shared(rows + 32 + lane);
}
