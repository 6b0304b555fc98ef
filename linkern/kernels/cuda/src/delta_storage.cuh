// Shared memory of a block of threads of the chunkwise delta rule, and its rows.
//
// Some warps of a block work one chunk ahead of the others, so there are two of everything
// that goes from one to the other. Of what is copied, another chunk ahead, there are three.
#pragma once
#include "head_slice.cuh"
#include "unit_inverse.cuh"

// The rows of a chunk: queries, keys, values. There are three buffers of operands: of the
// chunk of the columns, of the chunk ahead, and of the one that is copied. bfloat16 rows are
// copied there; other rows have a staging buffer.
template <class Shape> struct DeltaChunk {
  typedef typename Shape::Io Io;
  static constexpr bool kSplits = Split<Io>::kParts > 1;
  // The first threads without columns load rows: those of the erases, which have less to do
  // than those of the columns, or all if rows are split. Those of the scores load gates.
  static constexpr int kFirstLoader = 32 * Shape::kColumnBlocks;
  static constexpr int kIntraThreads = Shape::kThreads - kFirstLoader;
  static constexpr int kEraseThreads = 32 * Shape::kTiles;
  static constexpr int kLoaders = kSplits ? kIntraThreads : kEraseThreads;
  static constexpr int kFirstGate =
      kFirstLoader + (kIntraThreads > kEraseThreads ? kEraseThreads : 0);
  static constexpr int kGates = (Shape::kTokens + 31) / 32 * 32;
  typedef SmemMatrix<Io, Shape::kTokens, Shape::kFeatures> FeatureTile;
  typedef SmemMatrix<Io, Shape::kTokens, Shape::kColumns> ValueTile;
  typedef Stage<Io, Shape::kTokens, Shape::kFeatures, kLoaders, kFirstLoader> FeatureStage;
  typedef Stage<Io, Shape::kTokens, Shape::kColumns, kLoaders, kFirstLoader> ValueStage;
  static constexpr u32 kStagedBytes =
      kSplits ? 2 * FeatureStage::kBytes + ValueStage::kBytes : 0;
  static constexpr u32 kOperandBytes = 2 * FeatureTile::kBytes + ValueTile::kBytes;
  static constexpr u32 kBytes = kStagedBytes + 3 * kOperandBytes;
  unsigned char *operands, *staged;  // queries, then keys, values
  int count;                         // tokens of the chunk

  DEVICE DeltaChunk(unsigned char* bytes, int number, i64 tokens)
      : operands(bytes + kStagedBytes + number % 3 * kOperandBytes),
        staged(kSplits ? bytes : operands) {
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
  typedef typename Split<typename Shape::Io>::Stored Stored;
  typedef SmemMatrix<typename Computed<typename Shape::Io>::Type, Shape::kTokens,
                     Shape::kTokens>
      ScoreTile;
  struct alignas(8) Decays : ChunkDecays<Shape::kTiles> {};  // read in pairs
  static constexpr int kColumnWarps = Shape::kColumnBlocks;
  static constexpr int kIntraWarps = Shape::kThreads / 32 - kColumnWarps;
  static constexpr u32 kStripBytes = 16 * 16 * sizeof(Stored);

  unsigned char rows[DeltaChunk<Shape>::kBytes];
  unsigned char score_bytes[2][ScoreTile::kBytes], erase_bytes[2][ScoreTile::kBytes];
  unsigned char output[kColumnWarps * kStripBytes];
  HeadSlice<Shape, BY_TOKEN, NO_ERASE> slice;  // here, as registers of all warps are short
  BlockRows diagonal[Shape::kTiles];  // of blocks that are inverted
  float beta[3][Shape::kTokens];
  // Decays from the start of the chunk to each token, and from each token to the end.
  float entering[2][Shape::kTokens], leaving[2][Shape::kTokens];
  Decays decays[2];
  float chunk_decay[2];

  // Queries with keys, decayed: rows of queries, on and below the diagonal.
  DEVICE ScoreTile scores(int slot) { return {score_bytes[slot]}; }
  // -L below the diagonal blocks of 16, and the inverses of those of I + L on the diagonal.
  DEVICE ScoreTile erases(int slot) { return {erase_bytes[slot]}; }
};
