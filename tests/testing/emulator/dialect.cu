// One kernel for each part of CUDA C++ that the emulator claims, of one block of 64 threads.
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <torch/extension.h>

#include "tile.cuh"

namespace parts {

#define N 64

__global__ void __launch_bounds__(N) neighbours(const float* x, float* out) {
  __shared__ float first[N], second[N / 2][2];
  __shared__ __align__(16) half narrow[N];
  const int i = threadIdx.x;
  first[i] = x[i];
  second[i / 2][i % 2] = 2 * x[i];
  narrow[i] = __float2half(x[i]);
  __syncthreads();
  const int next = (i + 1) % N;
  out[i] = first[next] + second[next / 2][next % 2] + __half2float(narrow[next]);
}

// x in reverse, through dynamic memory and the memory of a device function.
template <typename T> __global__ void reversed(const T* x, T* out) {
  extern __shared__ __align__(16) unsigned char raw[];
  T* tile = reinterpret_cast<T*>(raw);
  float* pairs = Tile<N / 2>::memory();
  tile[threadIdx.x] = x[threadIdx.x];
  pairs[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x] * pairs[N - 1 - threadIdx.x];
}

// Sums of warps, by shuffles of all lanes and by one of eight lanes each.
__global__ void sums(const float* x, float* out) {
  float sum = x[threadIdx.x], eight = sum;
  for (int by = warpSize / 2; by > 0; by /= 2) sum += __shfl_down_sync(0xffffffff, sum, by);
  const unsigned mask = 0xffu << (threadIdx.x % 32 / 8 * 8);
  for (int by = 4; by > 0; by /= 2) eight += __shfl_xor_sync(mask, eight, by, 8);
  out[threadIdx.x] = __shfl_sync(0xffffffff, sum, 0) + 1000 * eight;
}

__global__ void votes(const float* x, float* out) {
  const bool large = x[threadIdx.x] >= 3;
  const int count = __popc(__ballot_sync(0xffffffff, large));
  out[threadIdx.x] = count + 100 * __any_sync(~0u, large) + 1000 * __all_sync(~0u, large);
}

// Threads that have ended are missed by nobody.
__global__ void early(const float* x, float* out, int count) {
  const int i = threadIdx.x;
  if (i >= count) return;
  __syncthreads();
  out[i] = x[i] + __shfl_up_sync(0xffffffff, x[i], 1);
}

__global__ void histogram(const float* x, float* out, int* bins) {
  atomicAdd(&bins[int(x[threadIdx.x]) % 4], 1);
  atomicMax(&bins[4], int(x[threadIdx.x]));
  __syncthreads();
  atomicAdd(out + threadIdx.x, float(bins[threadIdx.x % 5]));
}

void dialect(const float* x, float* out) {
  neighbours<<<1, N>>>(x, out);
  reversed<float><<<dim3(1), dim3(N), N * sizeof(float)>>>(x, out + N);
  sums<<<1, N>>>(x, out + 2 * N);
  votes<<<1, N>>>(x, out + 3 * N);
  early<<<1, N>>>(x, out + 4 * N, 40);
  int* bins;
  cudaMalloc(&bins, 5 * sizeof(int));
  cudaMemset(bins, 0, 5 * sizeof(int));
  cudaMemset(out + 5 * N, 0, N * sizeof(float));
  histogram<<<1, N>>>(x, out + 5 * N, bins);
  cudaFree(bins);
}

}  // namespace parts

__global__ void scaled(const torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits> x,
                       float* out, float by) {
  out[blockIdx.x * x.size(1) + threadIdx.x] = by * x[blockIdx.x][threadIdx.x];
}

// Half of a transposed matrix.
torch::Tensor half_of(torch::Tensor x, double by) {
  TORCH_CHECK(x.dim() == 2, "a matrix");
  auto columns = x.transpose(0, 1);
  auto out = torch::empty({columns.size(0), columns.size(1)}, x.options());
  auto entries = columns.packed_accessor32<float, 2, torch::RestrictPtrTraits>();
  scaled<<<columns.size(0), columns.size(1)>>>(entries, out.data_ptr<float>(), by);
  return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("half_of", &half_of); }
