// A chunk of tokens: how blocks of threads tile it, its decays, its rows in shared memory.
#pragma once
#include "smem_stage.cuh"

// The tile of a head that a block of threads processes: all features and some columns of the
// values, in chunks of tokens. "Blocks" below are 16 x 16 entries.
template <class Io_, int Features, int Columns, int Tokens, int Warps> struct TileShape {
  typedef Io_ Io;
  static constexpr int kFeatures = Features, kColumns = Columns, kTokens = Tokens;
  static constexpr int kThreads = 32 * Warps, kTiles = Tokens / 16;
  static constexpr int kFeatureBlocks = Features / 16, kColumnBlocks = Columns / 16;

  // Each warp computes the output of one tile of 16 tokens in one slice of the columns, and
  // holds one slice of the rows and columns of the state. Some warps may be idle.
  static constexpr int kOutputSlices =
      Warps / kTiles < kColumnBlocks ? Warps / kTiles : kColumnBlocks;
  static constexpr int kOutputWarps = kTiles * kOutputSlices;
  static constexpr int kOutputBlocks = kColumnBlocks / kOutputSlices;
  static constexpr int kRowSlices = Warps < kFeatureBlocks ? Warps : kFeatureBlocks;
  static constexpr int kColumnSlices =
      Warps / kRowSlices < kColumnBlocks ? Warps / kRowSlices : kColumnBlocks;
  static constexpr int kStateWarps = kRowSlices * kColumnSlices;
  static constexpr int kStateRowBlocks = kFeatureBlocks / kRowSlices;
  static constexpr int kStateColumnBlocks = kColumnBlocks / kColumnSlices;
  static_assert(kTiles <= Warps, "each tile of tokens needs a warp for its output");
};

// Decays of a chunk by tiles of 16 tokens. Each is the exponential of a sum of log-decays,
// never of a difference of cumulative sums: a log-decay may be minus infinity.
template <int Tiles> struct ChunkDecays {
  static constexpr int kPitch = 24;      // lanes of a warp read from different banks
  float decay_mask[Tiles][16][kPitch];   // [tile][query][key]: from a token to a later one
  float from_start[Tiles * 16];          // from the start of the tile to each token
  float to_end[Tiles * 16];              // from each token to the end of its tile
  float tile_decay[Tiles];               // of the whole tile

  // Each thread passes the log-decay of one token, and half a warp has a tile. Threads
  // without a token take part in the shuffles of their warp.
  DEVICE void compute(float log_decay, int thread) {
    const int tile = thread / 16, token = thread % 16;
    float until = 0, after = 0, after_token[16];
#pragma unroll
    for (int query = 0; query < 16; query++) {
      const float other = __shfl_sync(kAllLanes, log_decay, thread % 32 / 16 * 16 + query);
      if (query <= token) until += other;
      if (query > token) after += other;
      after_token[query] = exp(after);
    }
    if (tile >= Tiles) return;
#pragma unroll
    for (int query = 0; query < 16; query++)
      decay_mask[tile][query][token] = after_token[query];
    from_start[thread] = exp(until);
    to_end[thread] = exp(after);
    if (token == 15) tile_decay[tile] = exp(until);
  }
  // The decay of all tiles strictly between two.
  DEVICE float between(int key_tile, int query_tile) const {
    float decay = 1;
    for (int tile = key_tile + 1; tile < query_tile; tile++) decay *= tile_decay[tile];
    return decay;
  }
};

// The rows of a chunk: queries, keys, values and, in the backward pass, output gradients.
// Unsplit 16-bit numbers are multiplied where they were staged, and two buffers alternate.
// Split numbers have one staging buffer and one buffer of operands.
template <class Shape, bool Backward> struct ChunkTiles {
  typedef typename Shape::Io Io;
  typedef SmemMatrix<Io, Shape::kTokens, Shape::kFeatures> FeatureTile;
  typedef SmemMatrix<Io, Shape::kTokens, Shape::kColumns> ValueTile;
  typedef Stage<Io, Shape::kTokens, Shape::kFeatures, Shape::kThreads> FeatureStage;
  typedef Stage<Io, Shape::kTokens, Shape::kColumns, Shape::kThreads> ValueStage;
  static constexpr bool kSplits = Split<Io>::kParts > 1;
  static constexpr u32 kValueTiles = Backward ? 2 : 1;  // values, output gradients
  static constexpr u32 kStagedBytes =
      2 * FeatureStage::kBytes + kValueTiles * ValueStage::kBytes;
  static constexpr u32 kBytes =
      kStagedBytes + 2 * FeatureTile::kBytes + kValueTiles * ValueTile::kBytes;
  unsigned char *staged, *operands;  // queries, then keys, values, output gradients
  int count;                         // tokens of the chunk

  DEVICE ChunkTiles(unsigned char* bytes, i64 number, i64 remaining)
      : staged(bytes + (kSplits ? 0 : int(number % 2) * kStagedBytes)),
        operands(bytes + (kSplits ? 1 : int(number % 2)) * kStagedBytes),
        count(int(remaining < Shape::kTokens ? remaining : Shape::kTokens)) {}

  DEVICE FeatureTile queries() const { return {operands}; }
  DEVICE FeatureTile keys() const { return {operands + FeatureTile::kBytes}; }
  DEVICE ValueTile values() const { return {operands + 2 * FeatureTile::kBytes}; }
  DEVICE ValueTile output_grads() const {
    return {operands + 2 * FeatureTile::kBytes + ValueTile::kBytes};
  }
  DEVICE FeatureStage staged_queries() const { return {staged}; }
  DEVICE FeatureStage staged_keys() const { return {staged + FeatureStage::kBytes}; }
  DEVICE ValueStage staged_values() const { return {staged + 2 * FeatureStage::kBytes}; }
  DEVICE ValueStage staged_output_grads() const {
    return {staged + 2 * FeatureStage::kBytes + ValueStage::kBytes};
  }
};
