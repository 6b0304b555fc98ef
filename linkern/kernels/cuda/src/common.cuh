// Parts of all kernels: strided rows, feature maps, conversions, 16-byte vectors.
#pragma once
#include "device.cuh"

// Feature maps that act on each entry alone.
enum FeatureMap { IDENTITY, ELU_PLUS_ONE, RELU, EXP };

// Rows of all tokens of all heads. Strides are counted in entries and may be zero or
// negative. The entries of a row are contiguous.
template <class T> struct Rows {
  T* data;
  i64 batch_stride, head_stride, token_stride;

  DEVICE T* at_head(i64 batch, i64 head) const {
    return data + batch * batch_stride + head * head_stride;
  }
};

struct Sizes {
  i64 heads, tokens;     // heads of one batch
  int features, values;  // K and V
};

// Entries that are loaded and stored as one vector.
template <class Real, int Count> struct __align__(sizeof(Real) * Count) Vector {
  Real entries[Count];
};
template <class Real> constexpr int kVectorSize = 16 / int(sizeof(Real));  // entries of 16 bytes

DEVICE float widen(float x) { return x; }
DEVICE double widen(double x) { return x; }
DEVICE float widen(bf16 x) { return low(x, x.bits); }
DEVICE float widen(f16 x) { return low(x, x.bits); }
DEVICE void store_rounded(float* target, float x) { *target = x; }
DEVICE void store_rounded(double* target, double x) { *target = x; }
DEVICE void store_rounded(bf16* target, float x) { target->bits = u16(pack(bf16(), x, 0.0f)); }
DEVICE void store_rounded(f16* target, float x) { target->bits = u16(pack(f16(), x, 0.0f)); }

// elu(x) + 1 is evaluated without subtracting numbers near one.
template <int Map, class Real> DEVICE Real apply_map(Real x) {
  if (Map == ELU_PLUS_ONE) return x > Real(0) ? x + Real(1) : exp(x);
  if (Map == RELU) return x > Real(0) ? x : Real(0);
  if (Map == EXP) return exp(x);
  return x;
}

// The derivative of a feature map as a function of the feature.
template <int Map, class Real> DEVICE Real map_derivative(Real feature) {
  if (Map == ELU_PLUS_ONE) return feature < Real(1) ? feature : Real(1);
  if (Map == RELU) return feature > Real(0) ? Real(1) : Real(0);
  if (Map == EXP) return feature;
  return Real(1);
}
