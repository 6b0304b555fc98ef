// Copies an array: the speed that kernels of this library are compared with.
//
// A thread loads kUnits units of 16 bytes before it stores one, so that enough loads are on
// their way; the units of a warp are contiguous.
#include "common.cuh"

constexpr int kThreads = 256, kUnits = 4;

struct CopyParams {
  const uint4* source;
  uint4* target;
  i64 units;
};

__global__ void __launch_bounds__(kThreads) copy(CopyParams params) {
  const i64 first = i64(blockIdx.x) * (kThreads * kUnits) + threadIdx.x;
  uint4 units[kUnits];
#pragma unroll
  for (int i = 0; i < kUnits; i++) {
    const i64 at = first + i * kThreads;
    if (at < params.units) units[i] = params.source[at];
  }
#pragma unroll
  for (int i = 0; i < kUnits; i++) {
    const i64 at = first + i * kThreads;
    if (at < params.units) params.target[at] = units[i];
  }
}
