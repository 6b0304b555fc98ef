// The functions of device.cuh in C++, over the headers of linkern/testing/emulator.
//
// Kernels include this header in place of the PTX wrappers of device.cuh. ldmatrix and mma
// synchronize the lanes of a warp and order nothing.
#pragma once
#include "cuda.hpp"

typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;

#define DEVICE inline

struct bf16 { u16 bits; };
struct f16 { u16 bits; };

namespace emulator {

inline Bf16 bits(bf16, u32 pair) { return {u16(pair)}; }
inline F16 bits(f16, u32 pair) { return {u16(pair)}; }

// -- operations of whole warps; see matrices.cpp

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
void spread_rows(void**, int);
void spread_columns(void**, int);
void multiply_bf16(void**, int);
void multiply_f16(void**, int);

inline void load_rows(Together spread, u32 (&to)[4], const void* place, int line) {
  if (reinterpret_cast<std::uintptr_t>(place) % 16)
    fail("ldmatrix: a row does not begin at a multiple of 16 bytes", line);
  Rows mine{to, *static_cast<const uint4*>(place), place};
  meet_lanes(spread, &mine, line);
}

}  // namespace emulator

#define SHARED_MEMORY(name) unsigned char* name = emulator::current->shared

inline float low(bf16 t, u32 pair) { return emulator::widened(emulator::bits(t, pair)); }
inline float high(bf16 t, u32 pair) { return emulator::widened(emulator::bits(t, pair >> 16)); }
inline float low(f16 t, u32 pair) { return emulator::widened(emulator::bits(t, pair)); }
inline float high(f16 t, u32 pair) { return emulator::widened(emulator::bits(t, pair >> 16)); }
template <class T> u32 pack(T t, float low, float high) {
  return emulator::rounded(emulator::bits(t, 0), low) |
         u32(emulator::rounded(emulator::bits(t, 0), high)) << 16;
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
