// A chunk on the way back in shared memory: its rows, the memories around it, its pairs.
#pragma once
#include "matrices.cuh"

template <class Io> struct Backward {
  Rows<const Io> query, key, value, cotangent;
  Rows<Io> query_gradient, key_gradient, value_gradient;
  const float *kept, *kept_normalizer;    // (B H, segments, K, V): before each segment
  const float *last, *last_normalizer;    // (B H, K, V), (B H, K): behind all of them
  const float *given, *given_normalizer;  // likewise, cotangents of these; null for zeros
  float *outside, *outside_normalizer;    // of the memory before all tokens
  Sizes sizes;
  i64 segments, segment;  // of each head, and tokens of each: whole chunks
  float scale;
};

// The rows of a chunk, which take turns with those of the next one.
template <class Cut> struct ChunkRows {
  typedef typename Cut::Io Io;
  typedef Matrix<Io, Cut::kTokens, Cut::kFeatures> FeatureTile;
  typedef Matrix<Io, Cut::kTokens, Cut::kColumns> ValueTile;
  typedef Landing<Io, Cut::kTokens, Cut::kFeatures, Cut::kThreads> FeatureLanding;
  typedef Landing<Io, Cut::kTokens, Cut::kColumns, Cut::kThreads> ValueLanding;
  static constexpr u32 kBytes = 2 * FeatureTile::kBytes + 2 * ValueTile::kBytes;
  unsigned char* bytes;
  int count;  // of its tokens

  DEVICE unsigned char* key_bytes() const { return bytes + FeatureTile::kBytes; }
  DEVICE unsigned char* value_bytes() const { return bytes + 2 * FeatureTile::kBytes; }
  DEVICE unsigned char* cotangent_bytes() const {
    return value_bytes() + ValueTile::kBytes;
  }
  DEVICE FeatureTile queries() const { return {bytes}; }
  DEVICE FeatureTile keys() const { return {key_bytes()}; }
  DEVICE ValueTile values() const { return {value_bytes()}; }
  DEVICE ValueTile cotangents() const { return {cotangent_bytes()}; }

  // Begins to copy what is there from the given token of a head on.
  DEVICE void copy(const Backward<Io>& of, i64 batch, i64 head, i64 start) const {
    const int features = of.sizes.features, values = of.sizes.values;
    FeatureLanding{bytes}.copy(of.query.of(batch, head) + start * of.query.token,
                               of.query.token, count, features);
    FeatureLanding{key_bytes()}.copy(of.key.of(batch, head) + start * of.key.token,
                                     of.key.token, count, features);
    ValueLanding{value_bytes()}.copy(of.value.of(batch, head) + start * of.value.token,
                                     of.value.token, count, values);
    ValueLanding{cotangent_bytes()}.copy(
        of.cotangent.of(batch, head) + start * of.cotangent.token, of.cotangent.token,
        count, values);
    commit_copies();
  }
  // Maps what this thread has copied.
  template <int Map> DEVICE void prepare(int features) const {
    if (Map == IDENTITY) return;
    FeatureLanding{bytes}.template prepare<Map>(queries(), count, features);
    FeatureLanding{key_bytes()}.template prepare<Map>(keys(), count, features);
  }
};

template <class Cut> struct Tiles {
  typedef typename Cut::Io Io;
  static_assert(Planes<Io>::kCount == 1, "rows are multiplied where they have landed");
  typedef Matrix<Io, Cut::kFeatures, Cut::kColumns> MemoryTile;
  typedef Matrix<Io, Cut::kTokens, Cut::kTokens> PairTile;
  unsigned char rows[2 * ChunkRows<Cut>::kBytes];
  unsigned char memory_bytes[MemoryTile::kBytes], outside_bytes[MemoryTile::kBytes];
  unsigned char pair_bytes[PairTile::kBytes], cotangent_bytes[PairTile::kBytes];
  float normalizer[Cut::kFeatures], outside_normalizer[Cut::kFeatures];
  float factors[Cut::kTokens], weight_cotangents[Cut::kTokens];  // 1 / u or s; d

  DEVICE MemoryTile memory() { return {memory_bytes}; }    // S
  DEVICE MemoryTile outside() { return {outside_bytes}; }  // R
  DEVICE PairTile pairs() { return {pair_bytes}; }         // P / u
  DEVICE PairTile cotangents() { return {cotangent_bytes}; }  // A
};
