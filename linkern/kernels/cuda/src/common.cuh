// What kernels share: where tokens lie, feature maps, numbers of any dtype as they compute.
#pragma once
#include "device.cuh"

// Feature maps that act on each entry alone.
enum FeatureMap { IDENTITY, ELU_PLUS_ONE, RELU, EXP };

// Rows of all tokens of all heads: strides, in entries, are 64-bit numbers, and may be zero
// or negative. The entries of a row lie side by side.
template <class T> struct Rows {
  T* at;
  i64 batch, head, token;

  DEVICE T* of(i64 in_batch, i64 in_head) const { return at + in_batch * batch + in_head * head; }
};

struct Sizes {
  i64 heads, tokens;     // heads of one batch
  int features, values;  // K and V
};

DEVICE float wide(float x) { return x; }
DEVICE double wide(double x) { return x; }
DEVICE float wide(bf16 x) { return low(x, x.bits); }
DEVICE float wide(f16 x) { return low(x, x.bits); }
DEVICE void put(float* place, float x) { *place = x; }
DEVICE void put(double* place, double x) { *place = x; }
DEVICE void put(bf16* place, float x) { place->bits = u16(pack(bf16(), x, 0.0f)); }
DEVICE void put(f16* place, float x) { place->bits = u16(pack(f16(), x, 0.0f)); }

// max(x + 1, exp(min(x, 0))) is elu(x) + 1 without a difference of numbers near one.
template <int Map, class Real> DEVICE Real feature(Real x) {
  if (Map == ELU_PLUS_ONE) return x > Real(0) ? x + Real(1) : exp(x);
  if (Map == RELU) return x > Real(0) ? x : Real(0);
  if (Map == EXP) return exp(x);
  return x;
}

// The derivative of a feature map, by the feature.
template <int Map, class Real> DEVICE Real slope(Real feature) {
  if (Map == ELU_PLUS_ONE) return feature < Real(1) ? feature : Real(1);
  if (Map == RELU) return feature > Real(0) ? Real(1) : Real(0);
  if (Map == EXP) return feature;
  return Real(1);
}
