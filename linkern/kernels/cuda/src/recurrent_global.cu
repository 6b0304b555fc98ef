// The recurrence token by token, with the state in global memory: for any number of features.
//
// A block of threads takes one head and 32 columns of its state through all tokens. Its warps
// share the features, and each lane has a column. Each entry of the state is read and written
// by the same thread, and is mostly in a cache.
#include "recurrent.cuh"

constexpr int kThreads = 256, kWarps = kThreads / 32, kColumns = 32;

// The sum over all warps for each lane, in the order of the warps.
template <class Real> DEVICE Real sum_over_warps(Real (&partial)[kWarps][32], Real x) {
  const int lane = threadIdx.x % 32;
  partial[threadIdx.x / 32][lane] = x;
  __syncthreads();
  Real sum = 0;
  for (int warp = 0; warp < kWarps; warp++) sum += partial[warp][lane];
  return sum;
}

// Two buffers, used in turn, so that each sum needs only one barrier.
template <class Real> struct PartialSums {
  Real erased[kWarps][32], output[kWarps][32];
};

template <class Io, class Real, int Decay, int Erase, int Read>
__global__ void __launch_bounds__(kThreads, 3)
    recurrent_global(RecurrentParams<Io, Real> params) {
  SHARED_MEMORY(bytes);
  PartialSums<Real>& partial = *reinterpret_cast<PartialSums<Real>*>(bytes);
  const int features = params.sizes.features, values = params.sizes.values;
  const int slices = max(1, (values + kColumns - 1) / kColumns);
  const HeadRows<Io, Real, Decay, Erase> head(params, blockIdx.x / slices);
  const int warp = threadIdx.x / 32;
  const int column = int(blockIdx.x % slices) * kColumns + threadIdx.x % 32;
  const bool valid = column < values;
  u32 broken = 0;

  for (int k = warp; k < features; k += kWarps)
    if (valid)
      head.state[i64(k) * values + column] =
          head.initial_state ? head.initial_state[i64(k) * values + column] : Real(0);

  for (i64 t = 0; t < params.sizes.tokens; t++) {
    const Io* query = head.query + t * params.query.token_stride;
    const Io* key = head.key + t * params.key.token_stride;
    const Io* value = head.value + t * params.value.token_stride;
    const Io* erase =
        Erase == NO_ERASE ? nullptr : head.erase + t * params.erase.token_stride;
    auto log_decay = [&](int k) -> Real {
      LoadedGate<Io, Real> gate;
      gate.load(head.log_decay, t, Decay == BY_FEATURE ? k : 0);
      return gate.widened(head.log_decay.narrow());
    };
    auto decay = [&](int k) -> Real { return Decay == NO_DECAY ? Real(1) : exp(log_decay(k)); };
    Real beta = 1;
    if (head.beta.data != nullptr) {
      LoadedGate<Io, Real> gate;
      gate.load(head.beta, t, 0);
      beta = gate.widened(head.beta.narrow());
      broken |= broken_by_beta(beta);
    }

    Real erased = 0, output = 0;
    if (Erase != NO_ERASE && valid)
      for (int k = warp; k < features; k += kWarps) {
        const Real before = head.state[i64(k) * values + column];
        erased += Real(widen(erase[k])) * (Erase == ERASE ? decay(k) * before : before);
      }
    erased = sum_over_warps(partial.erased, erased);
    const Real written = valid ? beta * (Real(widen(value[column])) - erased) : Real(0);
    if (Decay != NO_DECAY)
      for (int k = warp; k < (Decay == BY_FEATURE ? features : 1); k += kWarps)
        broken |= broken_by_log_decay(log_decay(k));
    for (int k = warp; k < features && valid; k += kWarps) {
      Real& entry = head.state[i64(k) * values + column];
      const Real before = entry, after = decay(k) * before + Real(widen(key[k])) * written;
      output += Real(widen(query[k])) * (Read == READ ? after : before);
      entry = after;
    }
    output = sum_over_warps(partial.output, output);
    if (warp == 0 && valid)
      store_rounded(head.output + t * params.output.token_stride + column,
                    params.scale * output);
  }
  report_broken(params.broken, broken);
}
