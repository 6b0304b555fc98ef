// Device functions beyond core CUDA C++. This is the only file with inline PTX.
//
// tests/kernels/cuda/emulator/emulator.hpp defines each function once more with the same
// name and signature and replaces this file if LINKERN_EMULATED is defined: a kernel that
// uses nothing else runs unchanged on a CPU, thread by thread.
//
// Shared-memory tiles of 16-bit numbers are addressed by byte offsets, which cost one 32-bit
// addition where a generic pointer costs two.
#pragma once

#ifdef LINKERN_EMULATED
#include "emulator.hpp"
#else

typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;

#define DEVICE __device__ __forceinline__
#define SHARED_MEMORY(name) extern __shared__ __align__(128) unsigned char name[]

// 16-bit floating-point numbers by their bits; no CUDA header is needed.
struct bf16 { u16 bits; };
struct f16 { u16 bits; };

// -- conversion from and to 16 bits in pairs: the first number is in the low half

DEVICE float low(bf16, u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float high(bf16, u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
DEVICE float low(f16, u32 pair) {
  float x;
  asm("{.reg .f16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, a;}" : "=f"(x) : "r"(pair));
  return x;
}
DEVICE float high(f16, u32 pair) {
  float x;
  asm("{.reg .f16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, b;}" : "=f"(x) : "r"(pair));
  return x;
}
DEVICE u32 pack(bf16, float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
DEVICE u32 pack(f16, float low, float high) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// The largest power of two that is at most x, for positive x.
DEVICE float power_of_two(float x) { return __uint_as_float(__float_as_uint(x) & 0x7f800000u); }

// -- shared memory by byte offset

typedef u32 SharedBase;

DEVICE SharedBase shared_base(const unsigned char* memory) {
  return (u32)__cvta_generic_to_shared(memory);
}
template <class T> DEVICE T load_shared(const T* address) { return *address; }
template <class T> DEVICE void store_shared(T* address, const T& x) { *address = x; }

// -- asynchronous copies from global to shared memory

// Copies 16 bytes if `valid`; otherwise writes zeros and does not read `source`.
DEVICE void cp_async(SharedBase base, u32 offset, const void* source, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               ::"r"(base + offset), "l"(source), "r"(valid ? 16 : 0) : "memory");
}
DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the last `Pending` groups of this thread are incomplete.
template <int Pending> DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// -- matrix fragments, distributed over the 32 lanes of a warp

// Loads four 8 x 8 matrices; each lane gives the address of one row of 16 bytes.
DEVICE void ldmatrix(u32 (&to)[4], SharedBase base, u32 offset) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(base + offset) : "memory");
}
DEVICE void ldmatrix_transposed(u32 (&to)[4], SharedBase base, u32 offset) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(base + offset) : "memory");
}
// sum (16 x 8) += a (16 x 16) b (16 x 8), accumulated in float32.
DEVICE void mma_sync(bf16, float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void mma_sync(f16, float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
