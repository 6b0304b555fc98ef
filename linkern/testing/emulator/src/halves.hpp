// 16-bit numbers of CUDA and of PyTorch, and the functions of cuda_fp16.h and cuda_bf16.h.
//
// Each operation computes in float32 and rounds once, which is correct rounding.
#pragma once
#include <type_traits>

#include "cuda.hpp"

namespace emulator {

template <class Bits> struct Half {
  u16 bits;

  Half() = default;
  Half(float x) : bits(rounded(Bits(), x)) {}
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Half(T x) : Half(float(x)) {}
  operator float() const { return widened(Bits{bits}); }
  Half& operator+=(float x) { return *this = Half(float(*this) + x); }
  Half& operator-=(float x) { return *this = Half(float(*this) - x); }
  Half& operator*=(float x) { return *this = Half(float(*this) * x); }
  Half& operator/=(float x) { return *this = Half(float(*this) / x); }
};
template <class B> Half<B> operator+(Half<B> a, Half<B> b) { return float(a) + float(b); }
template <class B> Half<B> operator-(Half<B> a, Half<B> b) { return float(a) - float(b); }
template <class B> Half<B> operator*(Half<B> a, Half<B> b) { return float(a) * float(b); }
template <class B> Half<B> operator/(Half<B> a, Half<B> b) { return float(a) / float(b); }
template <class B> Half<B> operator-(Half<B> a) { return -float(a); }

template <class B> struct alignas(4) Half2 { Half<B> x, y; };
template <class B> Half2<B> operator+(Half2<B> a, Half2<B> b) { return {a.x + b.x, a.y + b.y}; }
template <class B> Half2<B> operator*(Half2<B> a, Half2<B> b) { return {a.x * b.x, a.y * b.y}; }

}  // namespace emulator

typedef emulator::Half<emulator::F16> __half;
typedef emulator::Half<emulator::Bf16> __nv_bfloat16;
typedef emulator::Half2<emulator::F16> __half2;
typedef emulator::Half2<emulator::Bf16> __nv_bfloat162;
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

inline float __half2float(__half x) { return x; }
inline __half __float2half(float x) { return x; }
inline __half __float2half_rn(float x) { return x; }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
inline float2 __half22float2(__half2 x) { return {x.x, x.y}; }
inline float2 __bfloat1622float2(__nv_bfloat162 x) { return {x.x, x.y}; }
inline __half2 __float22half2_rn(float2 x) { return {x.x, x.y}; }
inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 x) { return {x.x, x.y}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline float __low2float(__half2 x) { return x.x; }
inline float __high2float(__half2 x) { return x.y; }
template <class B> emulator::Half<B> __hadd(emulator::Half<B> a, emulator::Half<B> b) {
  return a + b;
}
template <class B> emulator::Half<B> __hmul(emulator::Half<B> a, emulator::Half<B> b) {
  return a * b;
}
namespace c10 {
typedef ::__half Half;
typedef ::__nv_bfloat16 BFloat16;
}  // namespace c10
namespace at {
using c10::BFloat16;
using c10::Half;
}  // namespace at
