// Conversion from and to 16-bit numbers, rounded to nearest even.
#include <cmath>

#include "threads.hpp"

namespace emulator {

float widened(Bf16 x) {
  u32 bits = u32(x.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

u16 rounded(Bf16, float x) {
  u32 bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (std::isnan(x)) return 0x7fff;
  return u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float widened(F16 x) {
  u16 bits = x.bits;
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float size = exponent == 31 ? (fraction ? NAN : INFINITY)
               : exponent    ? std::ldexp(1024.0f + fraction, exponent - 25)
                             : std::ldexp(float(fraction), -24);
  return bits & 0x8000 ? -size : size;
}

u16 rounded(F16, float x) {
  u16 sign = std::signbit(x) ? 0x8000 : 0;
  float size = std::fabs(x);
  if (std::isnan(x)) return 0x7fff;
  if (size >= 65520.0f) return sign | 0x7c00;
  if (size < std::ldexp(1.0f, -14)) return sign | u16(std::nearbyint(std::ldexp(size, 24)));
  int exponent;
  float fraction = std::nearbyint(std::ldexp(std::frexp(size, &exponent), 11));
  // A fraction of 2048 carries into the exponent by itself.
  return sign | u16((exponent + 13) * 1024 + int(fraction));
}

}  // namespace emulator
