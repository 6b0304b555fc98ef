// A chunk of tokens, and panels of the channels of its rows, in plain arithmetic.
#pragma once
#include "common.cuh"

// Tokens of a chunk, and channels of its rows that are there at a time.
constexpr int kChunk = 16, kPanel = 32;

// What is left of one token, or of the memory, when another is read: exponentials of sums
// of log-decays, never of differences, since a sum may be minus infinity.
template <class Real> struct Decays {
  Real between[kChunk][kChunk + 1];  // [reader][written]; nothing above the diagonal
  Real entering[kChunk];             // of the memory, at each token
  Real leaving[kChunk];              // of each token, behind the chunk
};

// What enters and leaves the chunk; of the memory, entering[kChunk - 1] leaves it.
template <class Real>
DEVICE void find_edges(Decays<Real>& of, const Real* log_decay, int thread) {
  if (thread < kChunk) {
    Real before = 0, behind = 0;
    for (int i = 0; i <= thread; i++) before += log_decay[i];
    for (int i = thread + 1; i < kChunk; i++) behind += log_decay[i];
    of.entering[thread] = exp(before);
    of.leaving[thread] = exp(behind);
  }
}

template <class Real>
DEVICE void find_between(Decays<Real>& of, const Real* log_decay, int thread) {
  if (thread < kChunk) {
    Real sum = 0;
    for (int reader = 0; reader < kChunk; reader++) {
      if (reader > thread) sum += log_decay[reader];
      of.between[reader][thread] = exp(sum);
    }
  }
}

// Rows `first` to `first + count` of a tile, from channel `channel` on; zeros where the
// sequence or its channels end.
template <int Threads, int Map, class Io, class Real, int Pitch>
DEVICE void load_tile(Real (&tile)[kChunk][Pitch], const Io* rows, i64 stride, int count,
                      int channel, int channels, int thread) {
  for (int i = thread; i < kChunk * kPanel; i += Threads) {
    int row = i / kPanel, column = i % kPanel;
    bool there = row < count && channel + column < channels;
    tile[row][column] =
        there ? feature<Map>(Real(wide(rows[row * stride + channel + column]))) : Real(0);
  }
}
