// Shared memory of a block of threads of the chunkwise forward with a decay for each channel.
//
// A chunk is a tile of 16 tokens. Some warps of a block work one chunk ahead of the others, so
// there are two of everything that goes from one to the other. Of rows that are copied,
// another chunk ahead, there are two if only the former read them, or else three.
#pragma once
#include "head_slice.cuh"
#include "unit_inverse.cuh"

// Rows of queries and keys as they are in global memory, and values as operands.
template <class Shape> struct GlaChunk {
  typedef typename Shape::Io Io;
  static constexpr bool kSplits = Split<Io>::kParts > 1;
  static constexpr int kFirstThread = 32 * Shape::kColumnBlocks;  // of those that load
  static constexpr int kLoaders = Shape::kThreads - kFirstThread;
  typedef SmemMatrix<Io, Shape::kTokens, Shape::kColumns> ValueTile;
  typedef Stage<Io, Shape::kTokens, Shape::kFeatures, kLoaders, kFirstThread> FeatureStage;
  typedef Stage<Io, Shape::kTokens, Shape::kColumns, kLoaders, kFirstThread> ValueStage;
  static constexpr u32 kRowBytes = 2 * FeatureStage::kBytes;
  static constexpr u32 kStagedBytes = kSplits ? ValueStage::kBytes : 0;
  static constexpr u32 kBytes = 2 * kRowBytes + kStagedBytes + 3 * ValueTile::kBytes;
  unsigned char *rows, *operands, *staged;
  int count;  // tokens of the chunk

  DEVICE GlaChunk(unsigned char* bytes, int number, i64 tokens)
      : rows(bytes + number % 2 * kRowBytes),
        operands(bytes + 2 * kRowBytes + kStagedBytes + number % 3 * ValueTile::kBytes),
        staged(kSplits ? bytes + 2 * kRowBytes : operands) {
    const i64 remaining = tokens - i64(number) * Shape::kTokens;
    count = int(remaining < Shape::kTokens ? remaining : Shape::kTokens);
  }

  DEVICE FeatureStage queries() const { return {rows}; }
  DEVICE FeatureStage keys() const { return {rows + FeatureStage::kBytes}; }
  DEVICE ValueTile values() const { return {operands}; }
  DEVICE ValueStage staged_values() const { return {staged}; }
};

// Rows that multiply the state, or add to it.
enum GlaKind { READS, WRITES, ERASES };

template <class Shape, bool Erases> struct GlaStorage {
  typedef typename Split<typename Shape::Io>::Stored Stored;
  typedef typename Computed<typename Shape::Io>::Type Wide;
  typedef SmemMatrix<Wide, Shape::kTokens, Shape::kFeatures> FeatureTile;
  typedef SmemMatrix<Wide, 3 * Shape::kTokens / 2, Shape::kFeatures> CrossingTile;
  typedef SmemMatrix<Wide, Shape::kTokens, Shape::kTokens> ScoreTile;
  static_assert(Shape::kTokens == 16, "scores of one tile");
  static constexpr int kColumnWarps = Shape::kColumnBlocks;
  static constexpr u32 kStripBytes = 16 * 16 * sizeof(Stored);
  static constexpr int kKinds = Erases ? 3 : 2;
  static constexpr u32 kScoreBytes = (Erases ? 2 : 1) * ScoreTile::kBytes;

  unsigned char rows[GlaChunk<Shape>::kBytes];
  unsigned char operand_bytes[2][kKinds * FeatureTile::kBytes];
  unsigned char crossing_bytes[CrossingTile::kBytes], score_bytes[2][kScoreBytes];
  unsigned char output[kColumnWarps * kStripBytes];
  alignas(16) float decays[Shape::kTokens][Shape::kFeatures];
  alignas(16) float chunk_decay[2][Shape::kFeatures];
  BlockRows erased_scores;  // of the block that is inverted
  float beta[3][Shape::kTokens];
  HeadSlice<Shape, BY_FEATURE, NO_ERASE> slice;

  // Queries and erases, decayed from the start of the chunk; keys, decayed to its end.
  DEVICE FeatureTile operands(int slot, int kind) {
    return {operand_bytes[slot] + kind * FeatureTile::kBytes};
  }
  // Erases and queries of the later half, decayed from the middle of the chunk; and keys of
  // the earlier half, decayed to the middle.
  DEVICE CrossingTile crossing() { return {crossing_bytes}; }
  DEVICE static int crossing_row(int kind) {
    const int half = Shape::kTokens / 2;
    return kind == ERASES ? 0 : kind == READS ? half : 2 * half;
  }
  // Queries with keys, decayed: rows of queries, on and below the diagonal.
  DEVICE ScoreTile scores(int slot) { return {score_bytes[slot]}; }
  // The inverse of I + L.
  DEVICE ScoreTile inverse(int slot) { return {score_bytes[slot] + ScoreTile::kBytes}; }
};
