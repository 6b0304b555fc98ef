// CUDA C++ on a CPU: one fiber for each CUDA thread, which a scheduler enters and leaves.
//
// Kernels include this header in place of the PTX wrappers of device.cuh. All code that
// accesses memory of a kernel on behalf of one of its threads is in this header: it is
// compiled with the kernel, runs on the fiber of the thread, and is instrumented by
// ThreadSanitizer and AddressSanitizer. The scheduler, runtime.cpp, is not instrumented.
//
// Memory is ordered by the same operations as on a GPU: a launch, __syncthreads and
// __syncwarp. Shuffles, ldmatrix and mma synchronize the lanes of a warp and order nothing.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define DEVICE inline

struct bf16 { u16 bits; };
struct f16 { u16 bits; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }

namespace emulator {

// Indices of a thread, and the shared memory of its block.
struct Thread {
  dim3 index, block, block_size, grid_size;
  unsigned char* shared = nullptr;
  unsigned lane = 0;
};
extern Thread* current;

// Ends the launch with an error: the kernel has undefined behaviour.
[[noreturn]] void fail(const char* what, int line);

// __syncthreads and __syncwarp: earlier writes are visible afterwards.
void meet_block(int line);
void meet_warp(int line);
// The lanes of a warp meet, and the last one calls `together` for all. Orders nothing.
using Together = void (*)(void** of_lanes, int count);
void meet_lanes(Together together, void* of_lane, int line);
// Yields to other threads.
void give_way();

// True if this launch has the fault of this number, of those compiled in.
bool planted(int fault);

// -- asynchronous copies: they finish when the schedule says, at the latest at the wait

struct Copy {
  void* to;
  const void* from;
  bool valid;
  int group;
};
enum class Landing { at_once, when_waited_for, at_random };
Landing landing();
bool coin();
Copy& begin_copy(void* to, const void* from, bool valid);
Copy* copies(int& count);
int current_group();
void end_group();
void forget_landed();

inline void land(Copy& copy) {
  if (copy.to == nullptr) return;
  *static_cast<uint4*>(copy.to) =
      copy.valid ? *static_cast<const uint4*>(copy.from) : uint4{0, 0, 0, 0};
  copy.to = nullptr;
}
inline void land_some() {
  if (landing() != Landing::at_random) return;
  int count;
  Copy* all = copies(count);
  for (int i = 0; i < count; i++)
    if (coin()) land(all[i]);
}

// -- operations of whole warps; see collectives.cpp

struct Shuffled {
  std::uint64_t given, found;
  int from;
};
struct Rows {
  u32* to;
  uint4 row;
  const void* place;
};
struct Product {
  float* sum;
  const u32* a;
  u32 b[2];
};
void shuffle_lanes(void**, int);
void spread_rows(void**, int);
void spread_columns(void**, int);
void multiply_bf16(void**, int);
void multiply_f16(void**, int);

float widened(bf16, u16 bits);
float widened(f16, u16 bits);
u16 rounded(bf16, float x);
u16 rounded(f16, float x);

// Records one lane's access to shared memory, to count bank conflicts.
void count_banks(const void* place, std::size_t bytes, int line);

template <class T> T shuffled(T x, int from, int line) {
  static_assert(sizeof(T) <= 8, "a lane gives 8 bytes at most");
  Shuffled mine{0, 0, from};
  std::memcpy(&mine.given, &x, sizeof x);
  meet_lanes(shuffle_lanes, &mine, line);
  std::memcpy(&x, &mine.found, sizeof x);
  return x;
}

inline void load_rows(Together spread, u32 (&to)[4], const void* place, int line) {
  if (reinterpret_cast<std::uintptr_t>(place) % 16)
    fail("ldmatrix: a row does not begin at a multiple of 16 bytes", line);
  Rows mine{to, *static_cast<const uint4*>(place), place};
  meet_lanes(spread, &mine, line);
}

inline void syncthreads(int line) {
  land_some();
  meet_block(line);
}

}  // namespace emulator

#define threadIdx (emulator::current->index)
#define blockIdx (emulator::current->block)
#define blockDim (emulator::current->block_size)
#define gridDim (emulator::current->grid_size)
#define __syncthreads() emulator::syncthreads(__LINE__)
#define __syncwarp(...) emulator::meet_warp(__LINE__)
#define __shfl_sync(mask, x, from) emulator::shuffled(x, (from) & 31, __LINE__)
#define __shfl_xor_sync(mask, x, by) \
  emulator::shuffled(x, int(emulator::current->lane) ^ (by), __LINE__)

inline float __uint_as_float(u32 bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline float __expf(float x) { return std::exp(x); }
using std::max;
using std::min;

// -- the functions of device.cuh

#define SHARED_MEMORY(name) unsigned char* name = emulator::current->shared

inline float low(bf16 t, u32 pair) { return emulator::widened(t, u16(pair)); }
inline float high(bf16 t, u32 pair) { return emulator::widened(t, u16(pair >> 16)); }
inline float low(f16 t, u32 pair) { return emulator::widened(t, u16(pair)); }
inline float high(f16 t, u32 pair) { return emulator::widened(t, u16(pair >> 16)); }
template <class T> u32 pack(T t, float low, float high) {
  return emulator::rounded(t, low) | u32(emulator::rounded(t, high)) << 16;
}

inline float power_of_two(float x) {
  u32 bits;
  std::memcpy(&bits, &x, sizeof bits);
  return __uint_as_float(bits & 0x7f800000u);
}

typedef unsigned char* SharedBase;
inline SharedBase shared_base(unsigned char* memory) { return memory; }

#define load_shared(place) emulator::loaded(place, __LINE__)
#define store_shared(place, x) emulator::stored(place, x, __LINE__)
namespace emulator {
template <class T> T loaded(const T* place, int line) {
  count_banks(place, sizeof(T), line);
  return *place;
}
template <class T> void stored(T* place, const T& x, int line) {
  count_banks(place, sizeof(T), line);
  *place = x;
}
}  // namespace emulator

inline void cp_async(SharedBase base, u32 offset, const void* source, bool valid) {
  using namespace emulator;
  void* to = base + offset;
  auto misplaced = [](const void* place) {
    return reinterpret_cast<std::uintptr_t>(place) % 16 != 0;
  };
  if (misplaced(to) || (valid && misplaced(source)))
    fail("cp.async: an address is no multiple of 16 bytes", __LINE__);
  Copy& copy = begin_copy(to, source, valid);
  if (landing() == Landing::at_once) land(copy);
  land_some();
}
inline void cp_async_commit() { emulator::end_group(); }
template <int Left> void cp_async_wait() {
  using namespace emulator;
  int count;
  Copy* all = copies(count);
  for (int i = 0; i < count; i++)
    if (all[i].group < current_group() - Left) land(all[i]);
  forget_landed();
}

#define ldmatrix(to, base, offset) \
  emulator::load_rows(emulator::spread_rows, to, (base) + (offset), __LINE__)
#define ldmatrix_transposed(to, base, offset) \
  emulator::load_rows(emulator::spread_columns, to, (base) + (offset), __LINE__)
inline void mma_sync(bf16, float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  emulator::Product mine{sum, a, {b0, b1}};
  emulator::meet_lanes(emulator::multiply_bf16, &mine, __LINE__);
}
inline void mma_sync(f16, float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  emulator::Product mine{sum, a, {b0, b1}};
  emulator::meet_lanes(emulator::multiply_f16, &mine, __LINE__);
}
