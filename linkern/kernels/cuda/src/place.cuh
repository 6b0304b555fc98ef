// Where a block of threads is on the way back, in plain arithmetic: at a chunk of a head,
// with panels of it in shared memory; and the walk there, which leaves memories.
#pragma once
#include "panels.cuh"

constexpr int kThreads = kChunk * kChunk, kWarps = kThreads / 32;
constexpr int kSegment = 16;                 // chunks
constexpr int kRows = kChunk / kWarps;       // of a chunk for each warp: warp + i kWarps
constexpr int kEntries = kPanel / kWarps;    // rows of a tile of memory for each warp

template <class Io, class Real> struct Backward {
  Rows<const Io> query, key, value, cotangent;  // the cotangent is null for zeros
  Rows<const Real> log_decay;
  Rows<Io> query_gradient, key_gradient, value_gradient;
  Rows<Real> log_decay_gradient;
  Real* kept;     // (B H, segments, K, W): memory before each; before the first it is given
  Real* inside;   // (B H, kSegment, K, W): memory before each chunk of a segment
  Real* outside;  // (B H, K, W): cotangent of the last memory, in the end of the first
  Sizes sizes;
  Real scale;
};

template <class Real> struct Tiles {
  Real query[kChunk][kPanel + 1], key[kChunk][kPanel + 1];
  Real value[kChunk][kPanel + 1], cotangent[kChunk][kPanel + 1];  // V' and D'
  Real memory[kPanel][kPanel + 1], outside[kPanel][kPanel + 1];   // S and R
  Real pairs[kChunk][kChunk + 1], pair_cotangent[kChunk][kChunk + 1];  // P and A
  Real through[kChunk + 1][kChunk + 1];  // M: the last row after, the first column before
  Real factor[kChunk], weight_cotangent[kChunk];  // of the cotangents of rows; d
  Real log_decay[kChunk], partial[kWarps];
  Decays<Real> decays;
};

// One block of threads at one head, and the chunk that it is at.
template <class Io, class Real, int Map, bool Decay, bool Normalize> struct Place {
  const Backward<Io, Real>& of;
  Tiles<Real>& tiles;
  const i64 head;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int features = of.sizes.features, values = of.sizes.values;
  const int width = values + (Normalize ? 1 : 0);
  i64 start = 0;  // the first token of the chunk
  int count = 0;  // how many there are

  template <class T> DEVICE T* rows(const Rows<T>& all) const {
    return all.of(head / of.sizes.heads, head % of.sizes.heads) + start * all.token;
  }
  DEVICE i64 tokens_of_segment() const { return i64(kSegment) * kChunk; }
  DEVICE i64 segments() const {
    return (of.sizes.tokens + tokens_of_segment() - 1) / tokens_of_segment();
  }
  DEVICE i64 size() const { return i64(features) * width; }
  DEVICE Real* kept(i64 segment) const {
    return of.kept + (head * segments() + segment) * size();
  }
  DEVICE Real* inside(int chunk) const {
    return of.inside + (head * kSegment + chunk) * size();
  }
  DEVICE Real* outside() const { return of.outside + head * size(); }

  DEVICE Real between(int reader, int written) const {
    return Decay ? tiles.decays.between[reader][written] : Real(1);
  }
  DEVICE Real entering(int row) const {
    return Decay ? tiles.decays.entering[row] : Real(1);
  }
  DEVICE Real leaving(int row) const {
    return Decay ? tiles.decays.leaving[row] : Real(1);
  }

  DEVICE void go_to(i64 token) {
    start = token;
    count = int(of.sizes.tokens - start < kChunk ? of.sizes.tokens - start : kChunk);
    if (Decay && thread < kChunk)
      tiles.log_decay[thread] =
          thread < count ? rows(of.log_decay)[thread * of.log_decay.token] : Real(0);
  }

  // -- tiles: a panel of features, and a slice of columns

  DEVICE void load_queries(int panel) {
    load_tile<kThreads, Map>(tiles.query, rows(of.query), of.query.token, count, panel,
                             features, thread);
  }
  DEVICE void load_keys(int panel) {
    load_tile<kThreads, Map>(tiles.key, rows(of.key), of.key.token, count, panel,
                             features, thread);
  }
  DEVICE void load_values(int slice) {
    load_tile<kThreads, IDENTITY>(tiles.value, rows(of.value), of.value.token, count, slice,
                                  values, thread);
    for (int i = warp; i < kChunk; i += kWarps)
      if (Normalize && slice + lane == values) tiles.value[i][lane] = Real(1);
  }
  DEVICE void load_cotangents(int slice) {
    const bool none = of.cotangent.at == nullptr;
    load_tile<kThreads, IDENTITY>(tiles.cotangent, none ? nullptr : rows(of.cotangent),
                                  of.cotangent.token, none ? 0 : count, slice, values,
                                  thread);
    for (int i = warp; i < kChunk; i += kWarps)
      tiles.cotangent[i][lane] = Normalize && slice + lane == values
                                     ? tiles.weight_cotangent[i]
                                     : tiles.factor[i] * tiles.cotangent[i][lane];
  }
  // Each entry of a memory is read and written by one thread alone.
  DEVICE bool has(int panel, int k, int slice) const {
    return panel + k < features && slice + lane < width;
  }
  DEVICE i64 entry(int panel, int k, int slice) const {
    return i64(panel + k) * width + slice + lane;
  }
  DEVICE void load_memory(Real (&tile)[kPanel][kPanel + 1], const Real* from, int panel,
                          int slice) {
    for (int k = warp; k < kPanel; k += kWarps)
      tile[k][lane] = has(panel, k, slice) ? from[entry(panel, k, slice)] : Real(0);
  }

  // -- there: the memory, one tile of it at a time

  // Adds the tokens of the chunk, of which none is missing.
  DEVICE void add(Real (&memory)[kEntries], int panel, int slice) {
    load_keys(panel);
    load_values(slice);
    __syncthreads();  // of the log-decays
    if (Decay) find_edges(tiles.decays, tiles.log_decay, thread);
    __syncthreads();  // of tiles and decays
    for (int i = 0; i < kEntries; i++) {
      const int k = warp + i * kWarps;
      Real sum = 0;
      for (int token = 0; token < kChunk; token++)
        sum += leaving(token) * tiles.key[token][k] * tiles.value[token][lane];
      memory[i] = entering(kChunk - 1) * memory[i] + sum;
    }
    __syncthreads();  // before they are overwritten
  }

  DEVICE void take(Real (&memory)[kEntries], const Real* from, int panel, int slice) {
    for (int i = 0; i < kEntries; i++) {
      const int k = warp + i * kWarps;
      memory[i] = has(panel, k, slice) ? from[entry(panel, k, slice)] : Real(0);
    }
  }
  DEVICE void leave(const Real (&memory)[kEntries], Real* to, int panel, int slice) {
    for (int i = 0; i < kEntries; i++) {
      const int k = warp + i * kWarps;
      if (has(panel, k, slice)) to[entry(panel, k, slice)] = memory[i];
    }
  }

  // Leaves the memory before all segments but the first.
  DEVICE void keep(int panel, int slice) {
    Real memory[kEntries];
    take(memory, kept(0), panel, slice);
    for (i64 segment = 1; segment < segments(); segment++) {
      for (int chunk = 0; chunk < kSegment; chunk++) {
        go_to((segment - 1) * tokens_of_segment() + chunk * kChunk);
        add(memory, panel, slice);
      }
      leave(memory, kept(segment), panel, slice);
    }
  }

  // Leaves the memory before all chunks of a segment.
  DEVICE void come_into(i64 segment, int chunks) {
    for (int panel = 0; panel < features; panel += kPanel)
      for (int slice = 0; slice < width; slice += kPanel) {
        Real memory[kEntries];
        take(memory, kept(segment), panel, slice);
        for (int chunk = 0; chunk < chunks; chunk++) {
          leave(memory, inside(chunk), panel, slice);
          if (chunk + 1 == chunks) break;
          go_to(segment * tokens_of_segment() + chunk * kChunk);
          add(memory, panel, slice);
        }
      }
  }
};
