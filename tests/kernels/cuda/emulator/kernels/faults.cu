// Small kernels, each with a fault that the emulator must find unless `Right`.
#include "device.cuh"

struct Numbers {
  float* at;
  int count;
};

// Each thread reads what its neighbour wrote.
template <bool Right> __global__ void barrier(Numbers of) {
  SHARED_MEMORY(shared);
  float* tile = reinterpret_cast<float*>(shared);
  const int thread = threadIdx.x;
  tile[thread] = float(thread);
  if (Right) __syncthreads();
  of.at[thread] = tile[(thread + 1) % blockDim.x];
}

// The same within a warp: a shuffle synchronizes lanes but orders no memory.
template <bool Right> __global__ void warp_barrier(Numbers of) {
  SHARED_MEMORY(shared);
  float* tile = reinterpret_cast<float*>(shared);
  const int lane = threadIdx.x;
  tile[lane] = float(lane);
  const int one = __shfl_xor_sync(0xffffffffu, 1, 1);
  if (Right) __syncwarp();
  of.at[lane] = tile[(lane + one) % 32];
}

// Shared memory is overwritten, without waiting for its readers if wrong.
template <bool Right> __global__ void overwritten(Numbers of) {
  SHARED_MEMORY(shared);
  float* tile = reinterpret_cast<float*>(shared);
  const int thread = threadIdx.x;
  float sum = 0;
  for (int round = 0; round < 3; round++) {
    tile[thread] = float(round);
    __syncthreads();
    sum += tile[(thread + 32) % blockDim.x];
    if (Right) __syncthreads();
  }
  of.at[thread] = sum;
}

// Copies with a wait, or with a wait that comes too late.
template <bool Right> __global__ void copies(Numbers of) {
  SHARED_MEMORY(shared);
  const int thread = threadIdx.x;
  for (int i = 0; i < 2; i++) {
    cp_async(shared_base(shared), (2 * thread + i) * 16, of.at + 4 * (2 * thread + i), true);
    cp_async_commit();
  }
  cp_async_wait<Right ? 0 : 1>();
  const float* tile = reinterpret_cast<const float*>(shared);
  float last = tile[4 * (2 * thread + 1)];
  cp_async_wait<0>();
  __syncthreads();
  of.at[thread] = last;
}

template <bool Right> __global__ void unfinished_copy(Numbers of) {
  SHARED_MEMORY(shared);
  cp_async(shared_base(shared), threadIdx.x * 16, of.at + 4 * threadIdx.x, true);
  cp_async_commit();
  if (Right) cp_async_wait<0>();
}

template <bool Right> __global__ void misplaced_copy(Numbers of) {
  SHARED_MEMORY(shared);
  cp_async(shared_base(shared), threadIdx.x * 16 + (Right ? 0 : 4), of.at, true);
  cp_async_commit();
  cp_async_wait<0>();
}

template <bool Right> __global__ void misplaced_row(Numbers) {
  SHARED_MEMORY(shared);
  u32 found[4];
  ldmatrix(found, shared_base(shared), threadIdx.x * 16 + (Right ? 0 : 8));
}

// Some threads end while others wait.
template <bool Right> __global__ void early_end(Numbers of) {
  if (!Right && threadIdx.x == 0) return;
  __syncthreads();
  if (threadIdx.x == 0) of.at[0] = 1;
}

// Threads that meet at different barriers.
template <bool Right> __global__ void different_barriers(Numbers of) {
  if (Right || threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  of.at[threadIdx.x] = 1;
}

// Lanes of a warp at different instructions, which is undefined on a GPU.
template <bool Right> __global__ void different_instructions(Numbers of) {
  int found = 0;
  if (Right || threadIdx.x % 2) found = __shfl_xor_sync(0xffffffffu, int(threadIdx.x), 1);
  else __syncwarp();
  of.at[threadIdx.x] = float(found);
}

// One lane never arrives.
template <bool Right> __global__ void lane_missing(Numbers of) {
  if (Right || threadIdx.x != 3) of.at[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 0);
}

// Uninitialised memory is not zero.
template <bool Right> __global__ void unwritten(Numbers of) {
  SHARED_MEMORY(shared);
  float* tile = reinterpret_cast<float*>(shared);
  if (Right) tile[threadIdx.x] = 0;
  of.at[threadIdx.x] = tile[threadIdx.x];
}

template <bool Right> __global__ void beyond_shared(Numbers of) {
  SHARED_MEMORY(shared);
  float* tile = reinterpret_cast<float*>(shared);
  const int last = of.count - (Right ? 1 : 0);
  if (threadIdx.x == 0) tile[last] = 1;
}

template <bool Right> __global__ void beyond_global(Numbers of) {
  if (threadIdx.x == 0) of.at[of.count - (Right ? 1 : 0)] = 1;
}

// Two blocks write to the same address.
template <bool Right> __global__ void between_blocks(Numbers of) {
  if (threadIdx.x == 0) of.at[Right ? blockIdx.x : 0] += 1;
}
