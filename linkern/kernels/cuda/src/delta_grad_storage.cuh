// Parameters and shared memory of the gradients of a chunk of the delta rule.
#pragma once
#include "decay_grad.cuh"
#include "head_slice.cuh"

template <class Stored> struct DeltaGradParams {
  Rows<const Stored> query, key, value, output_grad;
  GateRows log_decay, beta;
  // (B H, chunks + 1, K, V): at the edges of chunks, and their gradients.
  const float *states, *state_grads;
  const float *written, *written_grads;  // (B H, T, V): U and Z
  Rows<Stored> query_grad, key_grad;
  Rows<float> log_decay_grad, beta_grad;  // null where there are no gates
  Sizes sizes;
  float scale;
};

// A tile as it is copied, and split into an operand. 16-bit rows are copied into the operand.
template <class Io, int Height, int Width, int Threads> struct alignas(16) StagedTile {
  typedef Stage<Io, Height, Width, Threads> Staging;
  typedef SmemMatrix<Io, Height, Width> Matrix;
  static constexpr bool kSplits = Split<Io>::kParts > 1;
  static constexpr u32 kStagedBytes = kSplits ? Staging::kBytes : 0;
  unsigned char bytes[kStagedBytes + Matrix::kBytes];

  DEVICE Matrix matrix() { return {bytes + kStagedBytes}; }
  DEVICE void copy(const typename Staging::Stored* source, i64 stride, int rows, int columns) {
    Staging{bytes}.copy(source, stride, rows, columns);
  }
  DEVICE void convert(int rows, int columns) {
    if (kSplits) Staging{bytes}.template convert<IDENTITY>(matrix(), rows, columns);
  }
};

// `Shape` has all features of a head and a panel of the columns of the values.
template <class Shape> struct DeltaGradStorage {
  typedef typename Shape::Io Io;
  typedef typename Computed<Io>::Type Wide;
  static constexpr int kTokens = Shape::kTokens, kThreads = Shape::kThreads;
  static constexpr int kSlices = kThreads / 32 / Shape::kTiles;
  typedef StagedTile<Io, kTokens, Shape::kFeatures, kThreads> FeatureRows;
  typedef StagedTile<Io, kTokens, Shape::kColumns, kThreads> ValueRows;
  typedef StagedTile<Wide, kTokens, Shape::kColumns, kThreads> WrittenRows;
  typedef StagedTile<Wide, Shape::kFeatures, Shape::kColumns, kThreads> StatePanel;
  typedef SmemMatrix<Wide, kTokens, kTokens> ScoreTile;

  FeatureRows queries, keys;
  // Of a panel: rows of V, D, U and Z; S before the chunk, and the gradient of S after it.
  ValueRows values, output_grads;
  WrittenRows written, written_grads;
  StatePanel state, state_grad;
  unsigned char read_bytes[ScoreTile::kBytes], erase_bytes[ScoreTile::kBytes];
  ChunkDecays<Shape::kTiles> decays;
  DecayGrad<Shape::kTiles, kSlices, kThreads / 32> decay_grad;
  float beta[kTokens];
  // By slices of the features: shares of rows in the gradients of log-decays, through the
  // state before the chunk, and of beta.
  float2 row_sums[kSlices][kTokens];

  // Gradients of q_i^T k_j and of k_i^T k_j.
  DEVICE ScoreTile read_grads() { return {read_bytes}; }
  DEVICE ScoreTile erase_grads() { return {erase_bytes}; }
};
