// Sums over neighbouring lanes of a warp, a power of two of them.
#pragma once
#include "common.cuh"

// Sums each number over the lanes; all of them get the sums.
template <int Lanes, int Count, class Real>
DEVICE void sum_over_lanes(Real (&numbers)[Count]) {
#pragma unroll
  for (int distance = Lanes / 2; distance > 0; distance /= 2)
#pragma unroll
    for (int i = 0; i < Count; i++) numbers[i] += __shfl_xor_sync(~0u, numbers[i], distance);
}

// The same over 2 Distance lanes, but each lane gets one sum: number lane / (2 Distance /
// Count). In each step a lane sends the half of the numbers that its partner keeps.
template <int Count, int Distance, class Real> DEVICE Real reduce_scatter(Real* numbers) {
  if constexpr (Distance == 0) {
    return numbers[0];
  } else if constexpr (Count == 1) {
    numbers[0] += __shfl_xor_sync(~0u, numbers[0], Distance);
    return reduce_scatter<1, Distance / 2>(numbers);
  } else {
    const bool upper = threadIdx.x & Distance;
#pragma unroll
    for (int i = 0; i < Count / 2; i++) {
      const Real sent = upper ? numbers[i] : numbers[i + Count / 2];
      const Real kept = upper ? numbers[i + Count / 2] : numbers[i];
      numbers[i] = kept + __shfl_xor_sync(~0u, sent, Distance);
    }
    return reduce_scatter<Count / 2, Distance / 2>(numbers);
  }
}
