// The recurrence token by token, its memory where it is returned: for any number of features.
//
// A block of threads takes one head and 32 columns of its memory through all tokens; its
// warps share the features, and a lane is a column. Each entry is read and written by the
// same thread, and lies in a cache most of the time.
#include "token.cuh"

constexpr int kThreads = 256, kWarps = kThreads / 32, kColumns = 32;

// The sum of one number over all warps, for each lane, in the order of the warps.
template <class Real> DEVICE Real sum_over_warps(Real (&parts)[kWarps][32], Real part) {
  const int lane = threadIdx.x % 32;
  parts[threadIdx.x / 32][lane] = part;
  __syncthreads();
  Real sum = 0;
  for (int warp = 0; warp < kWarps; warp++) sum += parts[warp][lane];
  return sum;
}

template <class Real> struct Parts {
  Real erased[kWarps][32], found[kWarps][32];  // in turn: one barrier is enough for each
};

template <class Io, class Real, int DecayBy, int Erased, int ReadWhen>
__global__ void __launch_bounds__(kThreads, 3) token_by_token(Terms<Io, Real> of) {
  SHARED_MEMORY(shared);
  Parts<Real>& parts = *reinterpret_cast<Parts<Real>*>(shared);
  const int features = of.sizes.features, values = of.sizes.values;
  const int slices = max(1, (values + kColumns - 1) / kColumns);
  const Head<Io, Real, DecayBy, Erased> head(of, blockIdx.x / slices);
  const int warp = threadIdx.x / 32;
  const int column = int(blockIdx.x % slices) * kColumns + threadIdx.x % 32;
  const bool there = column < values;

  for (int k = warp; k < features; k += kWarps)
    if (there)
      head.memory[i64(k) * values + column] =
          head.memory_before ? head.memory_before[i64(k) * values + column] : Real(0);

  for (i64 t = 0; t < of.sizes.tokens; t++) {
    const Io* query = head.query + t * of.query.token;
    const Io* key = head.key + t * of.key.token;
    const Io* value = head.value + t * of.value.token;
    const Io* erase = Erased == NO_ERASE ? nullptr : head.erase + t * of.erase.token;
    const Real* log_decay =
        DecayBy == NO_DECAY ? nullptr : head.log_decay + t * of.log_decay.token;
    auto left = [&](int k) -> Real {
      if (DecayBy == NO_DECAY) return 1;
      return exp(log_decay[DecayBy == BY_FEATURE ? k : 0]);
    };

    Real erased = 0, found = 0;
    if (Erased != NO_ERASE && there)
      for (int k = warp; k < features; k += kWarps) {
        const Real before = head.memory[i64(k) * values + column];
        erased += Real(wide(erase[k])) * (Erased == ERASE ? left(k) * before : before);
      }
    erased = sum_over_warps(parts.erased, erased);
    const Real written = there ? Real(wide(value[column])) - erased : Real(0);
    for (int k = warp; k < features && there; k += kWarps) {
      Real& place = head.memory[i64(k) * values + column];
      const Real before = place, after = left(k) * before + Real(wide(key[k])) * written;
      found += Real(wide(query[k])) * (ReadWhen == READ ? after : before);
      place = after;
    }
    found = sum_over_warps(parts.found, found);
    if (warp == 0 && there) put(head.output + t * of.output.token + column, found);
  }
}
