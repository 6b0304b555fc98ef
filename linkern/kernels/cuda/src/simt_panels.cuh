// Chunks of tokens and panels of channels in shared memory, for kernels without tensor cores.
#pragma once
#include "common.cuh"

// Tokens of a chunk, and channels of its rows that are in shared memory at a time.
constexpr int kChunk = 16, kPanel = 32;

// Decays of a chunk: exponentials of sums of log-decays, never of differences, since a sum
// may be minus infinity.
template <class Real> struct SimtDecays {
  Real decay_mask[kChunk][kChunk + 1];  // [query][key]; not written above the diagonal
  Real from_start[kChunk];  // from the start of the chunk to each token; the last: of all of it
  Real to_end[kChunk];      // from each token to the end of the chunk
};

template <class Real>
DEVICE void compute_boundary_decays(SimtDecays<Real>& decays, const Real* log_decay,
                                    int thread) {
  if (thread < kChunk) {
    Real until = 0, after = 0;
    for (int i = 0; i <= thread; i++) until += log_decay[i];
    for (int i = thread + 1; i < kChunk; i++) after += log_decay[i];
    decays.from_start[thread] = exp(until);
    decays.to_end[thread] = exp(after);
  }
}

template <class Real>
DEVICE void compute_decay_mask(SimtDecays<Real>& decays, const Real* log_decay, int thread) {
  if (thread < kChunk) {
    Real sum = 0;
    for (int query = 0; query < kChunk; query++) {
      if (query > thread) sum += log_decay[query];
      decays.decay_mask[query][thread] = exp(sum);
    }
  }
}

// Loads `count` rows from channel `channel` on, mapped; zeros where the sequence or its
// channels end.
template <int Threads, int Map, class Io, class Real, int Pitch>
DEVICE void load_tile(Real (&tile)[kChunk][Pitch], const Io* rows, i64 stride, int count,
                      int channel, int channels, int thread) {
  for (int i = thread; i < kChunk * kPanel; i += Threads) {
    int row = i / kPanel, column = i % kPanel;
    bool valid = row < count && channel + column < channels;
    tile[row][column] =
        valid ? apply_map<Map>(Real(widen(rows[row * stride + channel + column]))) : Real(0);
  }
}
