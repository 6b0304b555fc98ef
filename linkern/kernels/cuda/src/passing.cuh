// A chunk on the way back in shared memory: its rows, the memories around it, its pairs.
#pragma once
#include "keeper.cuh"
#include "through.cuh"

template <class Stored> struct Backward {
  Rows<const Stored> query, key, value, cotangent;
  Rows<const float> log_decay;
  Rows<Stored> query_gradient, key_gradient, value_gradient;
  Rows<float> log_decay_gradient;
  const float *kept, *kept_normalizer;  // (B H, segments, K, V), (B H, segments, K): memory
                                        // before each segment; null for zeros
  unsigned char* inside;  // (B H, groups, chunks of a segment) of Snapshot: before each
  float *outside, *outside_normalizer;  // (B H, groups, K, V), (B H, groups, K): cotangents
                                        // of the memory behind each group of segments, and
                                        // in the end of that before it
  float* left;  // (B H, groups): of the memory before a group behind it
  Sizes sizes;
  i64 segments, segment;  // of each head, and tokens of each: whole chunks
  i64 groups, group;      // of each head, and segments of each
  i64 pulls;              // gradients; or only finds what each group but the first adds
  float scale;
};

// A memory as it is multiplied, and its normalizer.
template <class Cut> struct alignas(16) Snapshot {
  typedef Matrix<typename Cut::Io, Cut::kFeatures, Cut::kColumns> Tile;
  static constexpr int kUnits = (Tile::kBytes + 4 * Cut::kFeatures) / 16;
  unsigned char bytes[Tile::kBytes];
  float normalizer[Cut::kFeatures];

  DEVICE Tile tile() { return {bytes}; }
  // To and from global memory. Each thread brings back what it has brought there.
  DEVICE void leave(unsigned char* to) const {
    for (int unit = threadIdx.x; unit < kUnits; unit += Cut::kThreads)
      *(uint4*)(to + 16 * unit) = load_shared((const uint4*)(bytes + 16 * unit));
  }
  DEVICE void come_back(const unsigned char* from) {
    for (int unit = threadIdx.x; unit < kUnits; unit += Cut::kThreads)
      copy_async(shared_base(bytes), 16 * unit, from + 16 * unit, true);
    commit_copies();
  }
};

// The rows of a chunk. Numbers of 16 bits that are multiplied as they are stay where they
// have landed, and two chunks take turns; others are split apart from where the next land.
template <class Cut> struct ChunkRows {
  typedef typename Cut::Io Io;
  typedef Matrix<Io, Cut::kTokens, Cut::kFeatures> FeatureTile;
  typedef Matrix<Io, Cut::kTokens, Cut::kColumns> ValueTile;
  typedef Landing<Io, Cut::kTokens, Cut::kFeatures, Cut::kThreads> FeatureLanding;
  typedef Landing<Io, Cut::kTokens, Cut::kColumns, Cut::kThreads> ValueLanding;
  static constexpr bool kSplits = Planes<Io>::kCount > 1;
  static constexpr u32 kLandedBytes = 2 * (FeatureLanding::kBytes + ValueLanding::kBytes);
  static constexpr u32 kBytes =
      kLandedBytes + 2 * (FeatureTile::kBytes + ValueTile::kBytes);
  unsigned char *landed, *split;  // queries; then come keys, values, cotangents
  int count;                      // of its tokens

  DEVICE ChunkRows(unsigned char* bytes, i64 number, i64 rest)
      : landed(bytes + (kSplits ? 0 : int(number % 2) * kLandedBytes)),
        split(bytes + (kSplits ? 1 : int(number % 2)) * kLandedBytes),
        count(int(rest < Cut::kTokens ? rest : Cut::kTokens)) {}

  DEVICE FeatureTile queries() const { return {split}; }
  DEVICE FeatureTile keys() const { return {split + FeatureTile::kBytes}; }
  DEVICE ValueTile values() const { return {split + 2 * FeatureTile::kBytes}; }
  DEVICE ValueTile cotangents() const {
    return {split + 2 * FeatureTile::kBytes + ValueTile::kBytes};
  }
  DEVICE FeatureLanding landed_queries() const { return {landed}; }
  DEVICE FeatureLanding landed_keys() const { return {landed + FeatureLanding::kBytes}; }
  DEVICE ValueLanding landed_values() const {
    return {landed + 2 * FeatureLanding::kBytes};
  }
  DEVICE ValueLanding landed_cotangents() const {
    return {landed + 2 * FeatureLanding::kBytes + ValueLanding::kBytes};
  }
};

template <class Cut> struct Tiles {
  typedef Matrix<typename Cut::Io, Cut::kTokens, Cut::kTokens> PairTile;
  static constexpr int kParts = Cut::kThreads / 32 / Cut::kTiles;
  unsigned char rows[ChunkRows<Cut>::kBytes];
  Snapshot<Cut> before, behind;  // S and R
  unsigned char pair_bytes[PairTile::kBytes], cotangent_bytes[PairTile::kBytes];
  float4 sums[kParts][Cut::kTokens];  // along rows: see Pull
  float asked[Cut::kTokens], asked_weight[Cut::kTokens];  // of the memory: e / u and e d
  Decays<Cut::kTiles> decays;
  Through<Cut::kTiles, kParts, Cut::kThreads / 32> through;

  DEVICE PairTile pairs() { return {pair_bytes}; }            // P / u
  DEVICE PairTile cotangents() { return {cotangent_bytes}; }  // A
};
