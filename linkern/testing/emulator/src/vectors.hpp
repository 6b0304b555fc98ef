// Vector types of CUDA: float2, int4 and so on.
#pragma once
#include "threads.hpp"

#define EMULATOR_VECTORS(T, name)                                                  \
  struct name##1 { T x; };                                                         \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                               \
  struct name##3 { T x, y, z; };                                                   \
  inline name##1 make_##name##1(T x) { return {x}; }                               \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                       \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }               \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
// At most 16 bytes are one access.
#define EMULATOR_VECTOR4(T, name) \
  struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) name##4 { T x, y, z, w; };

EMULATOR_VECTOR4(float, float)
EMULATOR_VECTOR4(double, double)
EMULATOR_VECTOR4(int, int)
EMULATOR_VECTOR4(short, short)
EMULATOR_VECTOR4(unsigned short, ushort)
EMULATOR_VECTOR4(signed char, char)
EMULATOR_VECTOR4(unsigned char, uchar)
EMULATOR_VECTORS(float, float)
EMULATOR_VECTORS(double, double)
EMULATOR_VECTORS(int, int)
EMULATOR_VECTORS(unsigned, uint)
EMULATOR_VECTORS(short, short)
EMULATOR_VECTORS(unsigned short, ushort)
EMULATOR_VECTORS(signed char, char)
EMULATOR_VECTORS(unsigned char, uchar)
