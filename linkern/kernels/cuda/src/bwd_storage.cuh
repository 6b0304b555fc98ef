// Parameters and shared memory of the chunkwise backward.
#pragma once
#include "decay_grad.cuh"
#include "state_accumulator.cuh"

// Gradients of a state are called dstate, of its normalizer dnormalizer.
template <class Stored> struct ChunkBwdParams {
  Rows<const Stored> query, key, value, output_grad;
  Rows<const float> log_decay;
  Rows<Stored> query_grad, key_grad, value_grad;
  Rows<float> log_decay_grad;
  // Checkpoints, the states before each segment: (B H, segments, K, V) and
  // (B H, segments, K); null for zeros.
  const float *checkpoints, *checkpoint_normalizers;
  unsigned char* chunk_states;  // (B H, groups, chunks of a segment) of StateTile: workspace
  // Gradients of the state, (B H, groups, K, V) and (B H, groups, K): on entry of that after
  // each group of segments, on return of that before it.
  float *dstate, *dnormalizer;
  float* decay_total;  // (B H, groups): product of the decays of a group
  Sizes sizes;
  i64 segments, segment_tokens;  // segments of a head, tokens of a segment: whole chunks
  i64 groups, group_segments;    // groups of a head, segments of a group
  // Whether to compute all gradients, or only the contribution of each group but the first
  // to the gradient of the state.
  i64 all_gradients;
  float scale;
};

// A state in operand format, and its normalizer.
template <class Shape> struct alignas(16) StateTile {
  typedef SmemMatrix<typename Shape::Io, Shape::kFeatures, Shape::kColumns> Matrix;
  static constexpr int kUnits = (Matrix::kBytes + 4 * Shape::kFeatures) / 16;
  unsigned char bytes[Matrix::kBytes];
  float normalizer[Shape::kFeatures];

  DEVICE Matrix matrix() { return {bytes}; }
  // To and from global memory. Each thread loads back the units that it stored.
  DEVICE void store_global(unsigned char* target) const {
    for (int unit = threadIdx.x; unit < kUnits; unit += Shape::kThreads)
      *(uint4*)(target + 16 * unit) = load_shared((const uint4*)(bytes + 16 * unit));
  }
  DEVICE void load_global_async(const unsigned char* source) {
    for (int unit = threadIdx.x; unit < kUnits; unit += Shape::kThreads)
      cp_async(shared_base(bytes), 16 * unit, source + 16 * unit, true);
    cp_async_commit();
  }
};

template <class Shape> struct BwdStorage {
  typedef SmemMatrix<typename Shape::Io, Shape::kTokens, Shape::kTokens> ScoreTile;
  static constexpr int kSlices = Shape::kThreads / 32 / Shape::kTiles;
  unsigned char rows[ChunkTiles<Shape, true>::kBytes];
  StateTile<Shape> state, dstate;  // S before the chunk and R, the gradient of S after it
  unsigned char score_bytes[ScoreTile::kBytes], score_grad_bytes[ScoreTile::kBytes];
  float4 row_sums[kSlices][Shape::kTokens];  // see GradTile::store_row_sums
  // Factors of the queries in the update of dstate and dnormalizer: e / u and e d.
  float query_factors[Shape::kTokens], query_shifts[Shape::kTokens];
  ChunkDecays<Shape::kTiles> decays;
  DecayGrad<Shape::kTiles, kSlices, Shape::kThreads / 32> decay_grad;

  DEVICE ScoreTile scores() { return {score_bytes}; }            // P / u
  DEVICE ScoreTile score_grads() { return {score_grad_bytes}; }  // A
};
