// What a chunk needs that does not depend on the state, with a decay for each channel:
//
//     P_ij = sum_k q_ik Gamma_ijk k_jk  for j <= i,
//     L_ij = b_i sum_k k_ik Gamma_ijk k_jk  for j < i,
//
// with the decays Gamma_ij of each channel from token j to token i. A product of these with
// the keys is no matrix product, unless it is split at a token between j and i: decays to
// that token and from it on are one at most. It is split in the middle of the chunk. For two
// tokens of one half a key is decayed token by token, in registers, and meets every query.
#pragma once
#include "gla_storage.cuh"
#include "lane_sums.cuh"

// Early: a token reads the state before it decays and is written.
template <class Shape, bool Erases, bool Early> struct GlaIntra {
  typedef GlaChunk<Shape> Chunk;
  typedef typename Chunk::FeatureStage FeatureStage;
  typedef typename FeatureStage::Stored Stored;
  typedef GlaStorage<Shape, Erases> Storage;
  typedef typename Storage::FeatureTile FeatureTile;
  static constexpr int kHalf = Shape::kTokens / 2;
  // The first and the last key of a half, the second and the last but one, and so on have as
  // many queries together. Lanes that share two keys have some channels each, in groups that
  // are loaded at once.
  static constexpr int kPairs = kHalf / 2, kLanes = Chunk::kLoaders / (2 * kPairs);
  static constexpr int kCount = Shape::kFeatures / kLanes, kGroup = kCount < 4 ? kCount : 4;
  static_assert(kGroup == 2 || kGroup == 4, "pairs of channels");
  static_assert(kLanes == 16 || kLanes == 32, "lanes of one warp");
  // Channels of a thread in rows of operands, and threads of a half: whole warps.
  static constexpr int kWidth = Shape::kFeatures > 64 ? 4 : 2;
  static constexpr int kUnits = Shape::kFeatures / kWidth;
  Storage& storage;
  const Chunk chunk;
  const int number, slot, thread;
  const int start, first, second;  // of a half; keys of this lane

  DEVICE GlaIntra(Storage& storage, const Chunk& chunk, int number, int thread)
      : storage(storage), chunk(chunk), number(number), slot(number % 2), thread(thread),
        start(thread / (kPairs * kLanes) * kHalf), first(start + thread / kLanes % kPairs),
        second(2 * start + kHalf - 1 - first) {}

  // Scores of two tokens of one half, and rows that multiply the state or the other half.
  DEVICE void compute_halves() const {
    float decayed[kCount] = {};
    compute_steps<kHalf>(decayed, 0);
    compute_steps<1>(decayed, kHalf);
    // Rows that cross the middle first: threads with two units have one of each kind.
#pragma unroll 1
    for (int unit = thread; unit < 2 * Storage::kKinds * kUnits; unit += Chunk::kLoaders) {
      const int rows = unit / kUnits, kind = rows % Storage::kKinds;
      const bool crosses = rows < Storage::kKinds;
      const int channel = unit % kUnits * kWidth;
      if (kind == READS)
        compute_operands<READS>(crosses, channel);
      else if (kind == WRITES)
        compute_operands<WRITES>(crosses, channel);
      else
        compute_operands<ERASES>(crosses, channel);
    }
  }

  // Scores of the later half with the earlier one, and the inverse: by one warp.
  DEVICE void compute_rest() const {
    Accumulator scores = {};
#pragma unroll 2
    for (int k = 0; k < Shape::kFeatures; k += 16)
      mma(scores, storage.crossing().left(0, k),
          storage.crossing().transposed_right_rows(2 * kHalf, k));
    const int row = lane_id() / 4, key = lane_id() % 4 * 2, query = kHalf + row;
    const float read[2] = {scores.entry(1, 0, 0), scores.entry(1, 0, 1)};
    storage.scores(slot).store_entries(query, key, read);
    if (!Erases) return;
    typedef Vector<float, 2> Two;
    const float factor = -storage.beta[number % 3][query];
    const Two erased = {{factor * scores.entry(0, 0, 0), factor * scores.entry(0, 0, 1)}};
    store_shared((Two*)(storage.erased_scores.row(query) + key), erased);
    __syncwarp();  // the block is complete
    if (lane_id() < 16)
      store_inverse(storage.inverse(slot), 0, storage.erased_scores, lane_id());
  }

 private:
  // The key and the query of a step.
  DEVICE bool meets_first(int step) const { return first + step < start + kHalf; }
  DEVICE int key_of(int step) const { return meets_first(step) ? first : second; }
  DEVICE int query_of(int step) const {
    return meets_first(step) ? first + step : start + step - 1;
  }

  // Decays keys step by step, and stores their scores.
  template <int Steps>
  DEVICE void compute_steps(float (&decayed)[kCount], int first_step) const {
    float scores[Steps] = {}, erased[Steps] = {};
#pragma unroll
    for (int step = 0; step < Steps; step++) {
      const int key = key_of(first_step + step), query = query_of(first_step + step);
      float queries[kCount], keys[kCount] = {}, decays[kCount];
      load_channels(queries, chunk.queries(), query);
      if (Erases || query == key) load_channels(keys, chunk.keys(), query);
      load_channels(decays, storage.decays[query]);
#pragma unroll
      for (int i = 0; i < kCount; i++) {
        const float before = decayed[i];
        decayed[i] = query == key ? keys[i] : before * decays[i];
        scores[step] += queries[i] * (Early ? before : decayed[i]);
        if (Erases) erased[step] += keys[i] * decayed[i];
      }
    }
    store_sums(scores, first_step, [&](int key, int query, float score) {
      if (!Early || key < query) storage.scores(slot).store_entry(query, key, score);
    });
    if (Erases)
      store_sums(erased, first_step, [&](int key, int query, float score) {
        store_shared(storage.erased_scores.row(query) + key,
                     -storage.beta[number % 3][query] * score);
      });
  }

  // Sums the scores of some steps over the lanes, and stores one of every few lanes.
  template <int Steps, class Store>
  DEVICE void store_sums(float (&scores)[Steps], int first_step, Store store) const {
    constexpr int kSharing = kLanes / Steps;  // lanes that have the same sum
    const float sum = reduce_scatter<Steps, kLanes / 2>(scores);
    const int lane = thread % kLanes, step = first_step + lane / kSharing;
    if (lane % kSharing == 0) store(key_of(step), query_of(step), sum);
  }

  // Some channels of the rows of a half: of what is read, written or erased. Reads and erases
  // are decayed from the start of the chunk, writes to its end; if the middle is between, also
  // from there on, or up to there.
  template <int Kind> DEVICE void compute_operands(bool crosses, int channel) const {
    if (crosses)
      compute_operands<Kind, true>(channel);
    else
      compute_operands<Kind, false>(channel);
  }
  template <int Kind, bool Crosses> DEVICE void compute_operands(int channel) const {
    constexpr bool kReads = Kind == READS, kWrites = Kind == WRITES;
    constexpr bool kExcluded = kWrites || (Early && kReads);  // the decay of the token
    constexpr int kHalfOfRows = Crosses != kWrites, kOther = 1 - kHalfOfRows;
    const FeatureStage rows = kReads ? chunk.queries() : chunk.keys();
    const FeatureTile target = storage.operands(slot, Kind);
    float decay[kWidth], across[kWidth];
#pragma unroll
    for (int c = 0; c < kWidth; c++) decay[c] = across[c] = 1.0f;
    if (Crosses)
#pragma unroll
      for (int i = 0; i < kHalf; i++) decay_by(across, kOther * kHalf + i, channel);
#pragma unroll
    for (int i = 0; i < kHalf; i++) {
      const int place = kWrites ? kHalf - 1 - i : i, token = kHalfOfRows * kHalf + place;
      float row[kWidth];
      load(row, rows, token, channel);
      if (kExcluded) multiply(row, decay);
      decay_by(decay, token, channel);
      if (!kExcluded) multiply(row, decay);
      if (Crosses) {
        storage.crossing().store_entries(storage.crossing_row(Kind) + place, channel, row);
        multiply(row, across);
      }
      target.store_entries(token, channel, row);
    }
    if (kReads && Crosses) {
      multiply(decay, across);
      store(storage.chunk_decay[slot] + channel, decay);
    }
  }
  DEVICE void decay_by(float (&decay)[kWidth], int token, int channel) const {
    float next[kWidth];
    load(next, storage.decays[token], channel);
    multiply(decay, next);
  }
  DEVICE static void multiply(float (&entries)[kWidth], const float (&by)[kWidth]) {
#pragma unroll
    for (int c = 0; c < kWidth; c++) entries[c] *= by[c];
  }

  // The first of a group of channels of this lane.
  DEVICE int channel_of(int group) const {
    return (group * kLanes + thread % kLanes) * kGroup;
  }
  template <class Source> DEVICE void load_channels(float (&to)[kCount], Source from) const {
#pragma unroll
    for (int group = 0; group < kCount / kGroup; group++) {
      float entries[kGroup];
      load(entries, from, channel_of(group));
#pragma unroll
      for (int i = 0; i < kGroup; i++) to[group * kGroup + i] = entries[i];
    }
  }
  DEVICE void load_channels(float (&to)[kCount], const FeatureStage& from, int row) const {
#pragma unroll
    for (int group = 0; group < kCount / kGroup; group++) {
      float entries[kGroup];
      load(entries, from, row, channel_of(group));
#pragma unroll
      for (int i = 0; i < kGroup; i++) to[group * kGroup + i] = entries[i];
    }
  }
  template <int Count>
  DEVICE static void load(float (&to)[Count], const float* row, int channel) {
    typedef Vector<float, Count> Entries;
    const Entries entries = load_shared((const Entries*)(row + channel));
#pragma unroll
    for (int i = 0; i < Count; i++) to[i] = entries.entries[i];
  }
  template <int Count> DEVICE static void store(float* row, const float (&from)[Count]) {
    Vector<float, Count> entries;
#pragma unroll
    for (int i = 0; i < Count; i++) entries.entries[i] = from[i];
    store_shared((Vector<float, Count>*)row, entries);
  }
  template <int Count>
  DEVICE static void load(float (&to)[Count], const FeatureStage& from, int row,
                          int channel) {
    typedef Words<Count * int(sizeof(Stored)) / 4> Unit;
    const Unit unit = load_shared((const Unit*)from.address(row, channel));
#pragma unroll
    for (int i = 0; i < Count; i++) to[i] = unpack(Stored(), unit, i);
  }
};
