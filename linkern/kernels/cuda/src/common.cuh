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
// Entries of a vector of 16 bytes.
template <class Real> constexpr int kVectorSize = 16 / int(sizeof(Real));

DEVICE float widen(float x) { return x; }
DEVICE double widen(double x) { return x; }
DEVICE float widen(bf16 x) { return low(x, x.bits); }
DEVICE float widen(f16 x) { return low(x, x.bits); }
DEVICE void store_rounded(float* target, float x) { *target = x; }
DEVICE void store_rounded(double* target, double x) { *target = x; }
DEVICE void store_rounded(bf16* target, float x) { target->bits = u16(pack(bf16(), x, 0.0f)); }
DEVICE void store_rounded(f16* target, float x) { target->bits = u16(pack(f16(), x, 0.0f)); }

// Gates of all tokens of all heads, as Rows: in the dtype Io of the rows if `narrow`, or else
// in that of the computation.
struct GateRows {
  const void* data;
  i64 batch_stride, head_stride, token_stride, narrow;
};

// The gates of one head from one token on.
template <class Io, class Real> struct Gates {
  const unsigned char* data = nullptr;
  i64 token_stride = 0;
  int itemsize = sizeof(Real);

  DEVICE Gates() {}
  DEVICE Gates(const GateRows& rows, i64 batch, i64 head, i64 token)
      : token_stride(rows.token_stride), itemsize(rows.narrow ? sizeof(Io) : sizeof(Real)) {
    data = (const unsigned char*)rows.data +
           (batch * rows.batch_stride + head * rows.head_stride + token * token_stride) *
               itemsize;
  }
  DEVICE bool narrow() const { return itemsize < int(sizeof(Real)); }
  DEVICE const unsigned char* at(i64 token, int channel) const {
    return data + (token * token_stride + channel) * itemsize;
  }
};

// A gate as it was loaded: its conversion would wait for the load.
template <class Io, class Real> struct LoadedGate {
  Real number = 0;
  DEVICE void load(const Gates<Io, Real>& from, i64 token, int channel) {
    load(from.at(token, channel), false);
  }
  DEVICE void load(const unsigned char* place, bool) { number = *(const Real*)place; }
  DEVICE Real widened(bool) const { return number; }
};
template <class Half> struct LoadedHalfGate {
  u32 bits = 0;
  DEVICE void load(const Gates<Half, float>& from, i64 token, int channel) {
    load(from.at(token, channel), from.narrow());
  }
  DEVICE void load(const unsigned char* place, bool narrow) {
    bits = narrow ? u32(((const Half*)place)->bits) : __float_as_uint(*(const float*)place);
  }
  DEVICE float widened(bool narrow) const {
    return narrow ? low(Half(), bits) : __uint_as_float(bits);
  }
};
template <> struct LoadedGate<bf16, float> : LoadedHalfGate<bf16> {};
template <> struct LoadedGate<f16, float> : LoadedHalfGate<f16> {};

// Rules that gates broke, by bits. NaN breaks none, and shows in the output.
enum BrokenRule { POSITIVE_LOG_DECAY = 1, BETA_OUTSIDE = 2 };
template <class Real> DEVICE u32 broken_by_log_decay(Real x) {
  return x > Real(0) ? POSITIVE_LOG_DECAY : 0;
}
template <class Real> DEVICE u32 broken_by_beta(Real x) {
  return x < Real(0) || x > Real(2) ? BETA_OUTSIDE : 0;
}
// Stores what all threads of a warp saw, an entry for each warp of the grid.
DEVICE void report_broken(u32* reports, u32 broken) {
  if (reports == nullptr) return;
  const u32 log_decay = __any_sync(~0u, broken & POSITIVE_LOG_DECAY);
  const u32 beta = __any_sync(~0u, broken & BETA_OUTSIDE);
  const i64 warp = i64(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (threadIdx.x % 32 == 0)
    reports[warp] = (log_decay ? POSITIVE_LOG_DECAY : 0) | (beta ? BETA_OUTSIDE : 0);
}

// elu(x) + 1 is evaluated without subtracting numbers near one.
template <int Map, class Real> DEVICE Real apply_map(Real x) {
  // A power that is not used costs less than a branch.
  const Real power = exp(x);
  if (Map == ELU_PLUS_ONE) return x > Real(0) ? x + Real(1) : power;
  if (Map == RELU) return x > Real(0) ? x : Real(0);
  if (Map == EXP) return power;
  return x;
}

// The derivative of a feature map as a function of the feature.
template <int Map, class Real> DEVICE Real map_derivative(Real feature) {
  if (Map == ELU_PLUS_ONE) return feature < Real(1) ? feature : Real(1);
  if (Map == RELU) return feature > Real(0) ? Real(1) : Real(0);
  if (Map == EXP) return feature;
  return Real(1);
}
