#pragma once
template <int N> struct Tile {
  __device__ static float* memory() {
    __shared__ float entries[N][2];
    return &entries[0][0];
  }
};
