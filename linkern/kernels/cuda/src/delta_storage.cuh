// Shared memory of a block of threads of the chunkwise delta rule, and its rows.
//
// Some warps of a block work one chunk ahead of the others, so there are two of everything
// that goes from one to the other.
#pragma once
#include "chunk_tiles.cuh"

// What a token writes depends on the state, so that errors of operands would add up. Hence
// 16-bit numbers are split like float32: of themselves only the first part is not zero.
struct f16_wide {};
struct bf16_wide {};
template <> struct Split<f16_wide> : Split<float> { typedef f16 Stored; };
template <> struct Split<bf16_wide> : Split<float> { typedef bf16 Stored; };

// The rows of a chunk: queries, keys, values. There is one staging buffer, and there are two
// buffers of operands: of the chunk of the columns, and of the chunk ahead.
template <class Shape> struct DeltaChunk {
  typedef typename Shape::Io Io;
  typedef SmemMatrix<Io, Shape::kTokens, Shape::kFeatures> FeatureTile;
  typedef SmemMatrix<Io, Shape::kTokens, Shape::kColumns> ValueTile;
  typedef Stage<Io, Shape::kTokens, Shape::kFeatures, Shape::kThreads> FeatureStage;
  typedef Stage<Io, Shape::kTokens, Shape::kColumns, Shape::kThreads> ValueStage;
  static constexpr u32 kStagedBytes = 2 * FeatureStage::kBytes + ValueStage::kBytes;
  static constexpr u32 kOperandBytes = 2 * FeatureTile::kBytes + ValueTile::kBytes;
  static constexpr u32 kBytes = kStagedBytes + 2 * kOperandBytes;
  unsigned char *staged, *operands;  // queries, then keys, values
  int count;                         // tokens of the chunk

  DEVICE DeltaChunk(unsigned char* bytes, int number, i64 tokens)
      : staged(bytes), operands(bytes + kStagedBytes + number % 2 * kOperandBytes) {
    const i64 remaining = tokens - i64(number) * Shape::kTokens;
    count = int(remaining < Shape::kTokens ? remaining : Shape::kTokens);
  }

  DEVICE FeatureTile queries() const { return {operands}; }
  DEVICE FeatureTile keys() const { return {operands + FeatureTile::kBytes}; }
  DEVICE ValueTile values() const { return {operands + 2 * FeatureTile::kBytes}; }
  DEVICE FeatureStage staged_queries() const { return {staged}; }
  DEVICE FeatureStage staged_keys() const { return {staged + FeatureStage::kBytes}; }
  DEVICE ValueStage staged_values() const { return {staged + 2 * FeatureStage::kBytes}; }
};

template <class Shape> struct DeltaStorage {
  typedef typename Shape::Io Io;
  typedef SmemMatrix<Io, Shape::kTokens, Shape::kTokens> ScoreTile;
  static constexpr int kPitch = 24;  // lanes of a warp write to different banks
  static constexpr int kColumnWarps = Shape::kColumnBlocks;
  static constexpr u32 kStripBytes = 16 * 16 * sizeof(typename Split<Io>::Stored);

  unsigned char rows[DeltaChunk<Shape>::kBytes];
  unsigned char score_bytes[2][ScoreTile::kBytes], erase_bytes[2][ScoreTile::kBytes];
  unsigned char output[kColumnWarps * kStripBytes];
  float diagonal[Shape::kTiles][16][kPitch];  // blocks that are inverted
  float beta[2][Shape::kTokens];
  // Decays from the start of the chunk to each token, and from each token to the end.
  float entering[2][Shape::kTokens], leaving[2][Shape::kTokens];
  ChunkDecays<Shape::kTiles> decays;
  float chunk_decay[2];

  // Queries with keys, decayed: rows of queries, on and below the diagonal.
  DEVICE ScoreTile scores(int slot) { return {score_bytes[slot]}; }
  // -L below the diagonal blocks of 16, and the inverses of those of I + L on the diagonal.
  DEVICE ScoreTile erases(int slot) { return {erase_bytes[slot]}; }
};
