// CUDA C++ on a CPU: what a kernel may use without a header, and of <cuda_runtime.h>.
//
// Atomic operations are sequentially consistent, so they order memory more than on a GPU.
#pragma once
#include <math.h>
#include <stdlib.h>

#include <type_traits>

#include "threads.hpp"
#include "vectors.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define __constant__ static
#define __managed__
#define __grid_constant__

#define threadIdx (emulator::current->index)
#define blockIdx (emulator::current->block)
#define blockDim (emulator::current->block_size)
#define gridDim (emulator::current->grid_size)
#define warpSize 32
#define __syncthreads() emulator::syncthreads(__LINE__)
#define __syncwarp(...) emulator::At{__LINE__}.syncwarp(__VA_ARGS__)
#define __shfl_sync(mask, ...) emulator::shuffle(__LINE__, mask, __VA_ARGS__)
#define __shfl_up_sync(mask, ...) emulator::shuffle_up(__LINE__, mask, __VA_ARGS__)
#define __shfl_down_sync(mask, ...) emulator::shuffle_down(__LINE__, mask, __VA_ARGS__)
#define __shfl_xor_sync(mask, ...) emulator::shuffle_xor(__LINE__, mask, __VA_ARGS__)
#define __ballot_sync(mask, x) emulator::ballot((x) != 0, __LINE__, mask)
#define __any_sync(mask, x) int(emulator::ballot((x) != 0, __LINE__, mask) != 0)
#define __all_sync(mask, x) int(emulator::ballot((x) == 0, __LINE__, mask) == 0)

namespace emulator {

// Dynamic shared memory that is declared outside of functions.
template <class T> struct DynamicShared {
  operator T*() const { return reinterpret_cast<T*>(current->shared); }
};

struct At {
  int line;
  void syncwarp(u32 mask = kWholeWarp) const { meet_warp(line, mask); }
};

// A lane reads from lanes of its own segment of `width` lanes; otherwise it keeps its value.
template <class T> T shuffle(int line, u32 mask, T x, int from, int width = kWarp) {
  int lane = int(current->lane), first = lane & ~(width - 1);
  return shuffled(x, first | (from & (width - 1)), line, mask);
}
template <class T> T shuffle_up(int line, u32 mask, T x, unsigned by, int width = kWarp) {
  int lane = int(current->lane), first = lane & ~(width - 1), from = lane - int(by);
  return shuffled(x, from < first ? lane : from, line, mask);
}
template <class T> T shuffle_down(int line, u32 mask, T x, unsigned by, int width = kWarp) {
  int lane = int(current->lane), first = lane & ~(width - 1), from = lane + int(by);
  return shuffled(x, from >= first + width ? lane : from, line, mask);
}
template <class T> T shuffle_xor(int line, u32 mask, T x, int by, int width = kWarp) {
  int lane = int(current->lane), first = lane & ~(width - 1), from = lane ^ by;
  return shuffled(x, from >= first + width ? lane : from, line, mask);
}

template <class To, class From> To same_bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To bits;
  std::memcpy(&bits, &x, sizeof x);
  return bits;
}

template <std::size_t> struct Word;
template <> struct Word<2> { typedef std::uint16_t type; };
template <> struct Word<4> { typedef std::uint32_t type; };
template <> struct Word<8> { typedef std::uint64_t type; };

// Replaces *place by change(*place) in one step; returns the old value.
template <class T, class Change> T atomically(T* place, Change change) {
  typedef typename Word<sizeof(T)>::type Bits;
  Bits* bits = reinterpret_cast<Bits*>(place);
  Bits old = __atomic_load_n(bits, __ATOMIC_SEQ_CST);
  Bits changed;
  do {
    changed = same_bits<Bits>(T(change(same_bits<T>(old))));
  } while (!__atomic_compare_exchange_n(bits, &old, changed, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST));
  return same_bits<T>(old);
}

template <class T> struct Same { typedef T type; };
template <class T> using As = typename Same<T>::type;  // takes no part in deduction

}  // namespace emulator

template <class T> T atomicAdd(T* place, emulator::As<T> x) {
  return emulator::atomically(place, [x](T old) { return old + x; });
}
template <class T> T atomicSub(T* place, emulator::As<T> x) {
  return emulator::atomically(place, [x](T old) { return old - x; });
}
template <class T> T atomicMax(T* place, emulator::As<T> x) {
  return emulator::atomically(place, [x](T old) { return old < x ? x : old; });
}
template <class T> T atomicMin(T* place, emulator::As<T> x) {
  return emulator::atomically(place, [x](T old) { return x < old ? x : old; });
}
template <class T> T atomicExch(T* place, emulator::As<T> x) {
  return emulator::atomically(place, [x](T) { return x; });
}
template <class T> T atomicCAS(T* place, emulator::As<T> expected, emulator::As<T> x) {
  return emulator::atomically(place, [=](T old) { return old == expected ? x : old; });
}
template <class T> T atomicInc(T* place, emulator::As<T> last) {
  return emulator::atomically(place, [last](T old) { return old >= last ? T(0) : T(old + 1); });
}
template <class T> T atomicAnd(T* place, emulator::As<T> x) {
  return emulator::atomically(place, [x](T old) { return old & x; });
}
template <class T> T atomicOr(T* place, emulator::As<T> x) {
  return emulator::atomically(place, [x](T old) { return old | x; });
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// -- numbers

template <class A, class B> constexpr std::common_type_t<A, B> max(A a, B b) {
  typedef std::common_type_t<A, B> T;
  return T(a) < T(b) ? T(b) : T(a);
}
template <class A, class B> constexpr std::common_type_t<A, B> min(A a, B b) {
  typedef std::common_type_t<A, B> T;
  return T(b) < T(a) ? T(b) : T(a);
}

template <class T> T __ldg(const T* place) { return *place; }
inline float __uint_as_float(unsigned bits) { return emulator::same_bits<float>(bits); }
inline float __int_as_float(int bits) { return emulator::same_bits<float>(bits); }
inline unsigned __float_as_uint(float x) { return emulator::same_bits<unsigned>(x); }
inline int __float_as_int(float x) { return emulator::same_bits<int>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / ::sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
inline int __float2int_rn(float x) { return int(rintf(x)); }
inline int __float2int_rd(float x) { return int(floorf(x)); }
inline float __int2float_rn(int x) { return float(x); }

// -- the host: memory of a device is memory

typedef int cudaError_t;
typedef void* cudaStream_t;
constexpr cudaError_t cudaSuccess = 0;
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
constexpr int cudaFuncAttributeMaxDynamicSharedMemorySize = 8;
template <class T> cudaError_t cudaMalloc(T** place, std::size_t bytes) {
  *place = static_cast<T*>(malloc(bytes));
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* place) { return free(place), cudaSuccess; }
inline cudaError_t cudaMemset(void* to, int byte, std::size_t bytes) {
  return std::memset(to, byte, bytes), cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t bytes, cudaStream_t = nullptr) {
  return cudaMemset(to, byte, bytes);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  return std::memcpy(to, from, bytes), cudaSuccess;
}
template <class Kernel> cudaError_t cudaFuncSetAttribute(Kernel, int, int) { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
