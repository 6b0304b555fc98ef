// Shared memory of a block of threads of the chunkwise forward.
#pragma once
#include "chunk_tiles.cuh"

template <class Shape> struct FwdStorage {
  typedef typename Shape::Io Io;
  typedef ChunkTiles<Shape, false> Chunk;
  typedef SmemMatrix<Io, Shape::kFeatures, Shape::kColumns> StateTile;

  unsigned char rows[Chunk::kBytes];
  unsigned char state_bytes[StateTile::kBytes];
  unsigned char output[Shape::kTokens * Shape::kColumns * sizeof(Io)];
  // The normalizer as numbers or, for dtypes with the range of float32, in three bfloat16
  // parts: rows of a pitch by which lanes read from different banks.
  static constexpr bool kInParts = !Split<Io>::kNarrowRange;
  static constexpr int kPitch = Shape::kFeatures + 8;
  alignas(16) u16 normalizer_parts[3 * kPitch];
  ChunkDecays<Shape::kTiles> decays;
  float max_abs[Shape::kThreads / 32];  // of the part of the state that each warp holds

  DEVICE StateTile state() { return {state_bytes}; }
  DEVICE float* normalizer() { return reinterpret_cast<float*>(normalizer_parts); }

  // Power of two by which the state is divided when it is stored as an operand.
  DEVICE float state_scale() const {
    float largest = 0;
    for (int warp = 0; warp < Shape::kStateWarps; warp++)
      largest = max(largest, max_abs[warp]);
    return range_scale<Io>(largest);
  }
};
