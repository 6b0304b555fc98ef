// A chunk of tokens in shared memory: how a head is cut, what lies where, and decays.
#pragma once
#include "landing.cuh"

// How a head is cut: all its features and some columns of its values, in chunks of tokens,
// among so many warps. What is tall or wide is counted in blocks of 16.
template <class Io_, int Features, int Columns, int Tokens, int Warps> struct Cut {
  typedef Io_ Io;
  static constexpr int kFeatures = Features, kColumns = Columns, kTokens = Tokens;
  static constexpr int kThreads = 32 * Warps, kTiles = Tokens / 16;
  static constexpr int kTall = Features / 16, kWide = Columns / 16;

  // Each warp reads for one tile of tokens and one part of the columns, and keeps one part
  // of the rows and of the columns of the memory. Some may have nothing to do.
  static constexpr int kReadParts = Warps / kTiles < kWide ? Warps / kTiles : kWide;
  static constexpr int kReaders = kTiles * kReadParts, kReadWide = kWide / kReadParts;
  static constexpr int kRowParts = Warps < kTall ? Warps : kTall;
  static constexpr int kColumnParts = Warps / kRowParts < kWide ? Warps / kRowParts : kWide;
  static constexpr int kKeepers = kRowParts * kColumnParts;
  static constexpr int kKeptTall = kTall / kRowParts, kKeptWide = kWide / kColumnParts;
  static_assert(kTiles <= Warps, "each tile of tokens has a warp that reads for it");
};

// What is left of one token, or of what was before, when another is read. Each is the
// exponential of a sum of log-decays, never of a difference of sums: a log-decay may be
// minus infinity.
template <int Tiles> struct Decays {
  static constexpr int kPitch = 24;  // lanes of a warp read from different banks
  float within[Tiles][16][kPitch];   // of a token at another of its tile: [reader][written]
  float entering[Tiles * 16];        // of what was before the tile, at each token
  float leaving[Tiles * 16];         // of each token, behind its tile
  float whole[Tiles];                // of what was before the tile, behind it

  // Each thread has the log-decay of one token, half a warp those of a tile. Threads that
  // have none call it with their warp.
  DEVICE void find(float own, int thread) {
    const int tile = thread / 16, token = thread % 16;
    float until = 0, after = 0;
#pragma unroll
    for (int reader = 0; reader < 16; reader++) {
      const float other = __shfl_sync(kAllLanes, own, thread % 32 / 16 * 16 + reader);
      if (reader <= token) until += other;
      if (reader > token) after += other;
      if (tile < Tiles) within[tile][reader][token] = exp(after);
    }
    if (tile >= Tiles) return;
    entering[thread] = exp(until);
    leaving[thread] = exp(after);
    if (token == 15) whole[tile] = exp(until);
  }
};

template <class Cut> struct Shared {
  typedef typename Cut::Io Io;
  static constexpr int kPlanes = Planes<Io>::kCount;
  static constexpr int kNumbers = Cut::kTokens * (2 * Cut::kFeatures + Cut::kColumns);

  static constexpr int kLandedBytes = kNumbers * int(sizeof(Io));

  // Queries, keys and values of a chunk as they are in global memory, and, behind them, of
  // the next chunk, or of the same one split into planes.
  unsigned char tiles[kLandedBytes + kNumbers * 2 * kPlanes];
  unsigned char memory[Cut::kFeatures * Cut::kColumns * 2 * kPlanes];
  unsigned char output[Cut::kTokens * Cut::kColumns * sizeof(Io)];
  float normalizer[Cut::kFeatures];
  Decays<Cut::kTiles> decays;
  float largest[Cut::kThreads / 32];  // of the memory of each warp

  DEVICE Matrix<Io, Cut::kFeatures, Cut::kColumns> memory_tile() { return {memory}; }

  // What the memory is divided by.
  DEVICE float memory_unit() const {
    float found = 0;
    for (int warp = 0; warp < Cut::kKeepers; warp++) found = max(found, largest[warp]);
    return unit_of<Io>(found);
  }
};

// Where the tiles of a chunk are. Numbers of 16 bits are multiplied where they have landed,
// and two chunks take turns.
template <class Cut> struct Chunk {
  typedef typename Cut::Io Io;
  typedef Matrix<Io, Cut::kTokens, Cut::kFeatures> FeatureTile;
  typedef Matrix<Io, Cut::kTokens, Cut::kColumns> ValueTile;
  typedef Landing<Io, Cut::kTokens, Cut::kFeatures, Cut::kThreads> FeatureLanding;
  typedef Landing<Io, Cut::kTokens, Cut::kColumns, Cut::kThreads> ValueLanding;
  unsigned char *landed, *split;  // where its queries are; then come keys and values
  int count;  // of its tokens

  DEVICE Chunk(Shared<Cut>& shared, i64 number, i64 rest) {
    const int behind = Shared<Cut>::kLandedBytes;
    const bool splits = Planes<Io>::kCount > 1;
    landed = shared.tiles + (splits ? 0 : int(number % 2) * behind);
    split = shared.tiles + (splits ? behind : int(number % 2) * behind);
    count = int(rest < Cut::kTokens ? rest : Cut::kTokens);
  }
  DEVICE FeatureTile queries() const { return {split}; }
  DEVICE FeatureTile keys() const { return {split + FeatureTile::kBytes}; }
  DEVICE ValueTile values() const { return {split + 2 * FeatureTile::kBytes}; }
  DEVICE FeatureLanding landed_queries() const { return {landed}; }
  DEVICE FeatureLanding landed_keys() const { return {landed + FeatureLanding::kBytes}; }
  DEVICE ValueLanding landed_values() const {
    return {landed + 2 * FeatureLanding::kBytes};
  }
};
