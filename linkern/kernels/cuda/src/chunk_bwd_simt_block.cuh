// Context of a block of threads of the backward without tensor cores: its head, its chunk,
// panels of the chunk in shared memory, and the forward pass that recomputes states.
#pragma once
#include "simt_panels.cuh"

constexpr int kThreads = kChunk * kChunk, kWarps = kThreads / 32;
constexpr int kSegmentChunks = 16;           // chunks of a segment
constexpr int kRows = kChunk / kWarps;       // of a chunk for each warp: warp + i kWarps
constexpr int kEntries = kPanel / kWarps;    // rows of a tile of the state for each warp

// W = V + 1 with a normalizer, which is the last column of the state; otherwise W = V.
template <class Io, class Real> struct ChunkBwdSimtParams {
  Rows<const Io> query, key, value, output_grad;  // output_grad is null for zeros
  Rows<const Real> log_decay;
  Rows<Io> query_grad, key_grad, value_grad;
  Rows<Real> log_decay_grad;
  Real* checkpoints;   // (B H, segments, K, W): states before segments; the first is given
  Real* chunk_states;  // (B H, kSegmentChunks, K, W): workspace
  Real* dstate;  // (B H, K, W): on entry of the final state, on return of the initial one
  Sizes sizes;
  Real scale;
};

template <class Real> struct BwdSimtStorage {
  Real query[kChunk][kPanel + 1], key[kChunk][kPanel + 1];
  Real value[kChunk][kPanel + 1], output_grad[kChunk][kPanel + 1];  // V' and D'
  Real state[kPanel][kPanel + 1], dstate[kPanel][kPanel + 1];       // S and R
  Real scores[kChunk][kChunk + 1], score_grads[kChunk][kChunk + 1];  // P and A
  // M; the last row is the state after the chunk, the first column the state before it.
  Real shares[kChunk + 1][kChunk + 1];
  Real factors[kChunk], weight_grads[kChunk];  // of the output gradients of rows; d
  Real log_decay[kChunk], partial[kWarps];
  SimtDecays<Real> decays;
};

template <class Io, class Real, int Map, bool Decay, bool Normalize> struct SimtBlock {
  const ChunkBwdSimtParams<Io, Real>& params;
  BwdSimtStorage<Real>& storage;
  const i64 head;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int features = params.sizes.features, values = params.sizes.values;
  const int width = values + (Normalize ? 1 : 0);
  i64 start = 0;  // first token of the chunk
  int count = 0;  // tokens of the chunk

  template <class T> DEVICE T* rows(const Rows<T>& all) const {
    return all.at_head(head / params.sizes.heads, head % params.sizes.heads) +
           start * all.token_stride;
  }
  DEVICE i64 segment_tokens() const { return i64(kSegmentChunks) * kChunk; }
  DEVICE i64 segments() const {
    return (params.sizes.tokens + segment_tokens() - 1) / segment_tokens();
  }
  DEVICE i64 state_size() const { return i64(features) * width; }
  DEVICE Real* checkpoint(i64 segment) const {
    return params.checkpoints + (head * segments() + segment) * state_size();
  }
  DEVICE Real* chunk_state(int chunk) const {
    return params.chunk_states + (head * kSegmentChunks + chunk) * state_size();
  }
  DEVICE Real* dstate() const { return params.dstate + head * state_size(); }

  DEVICE Real decay_mask(int query, int key) const {
    return Decay ? storage.decays.decay_mask[query][key] : Real(1);
  }
  DEVICE Real from_start(int row) const {
    return Decay ? storage.decays.from_start[row] : Real(1);
  }
  DEVICE Real to_end(int row) const {
    return Decay ? storage.decays.to_end[row] : Real(1);
  }

  DEVICE void set_chunk(i64 token) {
    start = token;
    count =
        int(params.sizes.tokens - start < kChunk ? params.sizes.tokens - start : kChunk);
    if (Decay && thread < kChunk)
      storage.log_decay[thread] =
          thread < count ? rows(params.log_decay)[thread * params.log_decay.token_stride]
                         : Real(0);
  }

  // -- tiles in shared memory: a panel of features, and a slice of columns

  DEVICE void load_queries(int panel) {
    load_tile<kThreads, Map>(storage.query, rows(params.query), params.query.token_stride,
                             count, panel, features, thread);
  }
  DEVICE void load_keys(int panel) {
    load_tile<kThreads, Map>(storage.key, rows(params.key), params.key.token_stride, count,
                             panel, features, thread);
  }
  DEVICE void load_values(int slice) {
    load_tile<kThreads, IDENTITY>(storage.value, rows(params.value),
                                  params.value.token_stride, count, slice, values, thread);
    for (int i = warp; i < kChunk; i += kWarps)
      if (Normalize && slice + lane == values) storage.value[i][lane] = Real(1);
  }
  DEVICE void load_output_grads(int slice) {
    const bool none = params.output_grad.data == nullptr;
    load_tile<kThreads, IDENTITY>(storage.output_grad,
                                  none ? nullptr : rows(params.output_grad),
                                  params.output_grad.token_stride, none ? 0 : count, slice,
                                  values, thread);
    for (int i = warp; i < kChunk; i += kWarps)
      storage.output_grad[i][lane] = Normalize && slice + lane == values
                                         ? storage.weight_grads[i]
                                         : storage.factors[i] * storage.output_grad[i][lane];
  }
  // Each entry of a state is read and written by one thread only.
  DEVICE bool has(int panel, int k, int slice) const {
    return panel + k < features && slice + lane < width;
  }
  DEVICE i64 entry(int panel, int k, int slice) const {
    return i64(panel + k) * width + slice + lane;
  }
  DEVICE void load_state_tile(Real (&tile)[kPanel][kPanel + 1], const Real* source, int panel,
                              int slice) {
    for (int k = warp; k < kPanel; k += kWarps)
      tile[k][lane] = has(panel, k, slice) ? source[entry(panel, k, slice)] : Real(0);
  }

  // -- forward: one tile of the state at a time, in registers

  // Adds the tokens of a full chunk.
  DEVICE void add_chunk(Real (&state)[kEntries], int panel, int slice) {
    load_keys(panel);
    load_values(slice);
    __syncthreads();  // the log-decays are loaded
    if (Decay) compute_boundary_decays(storage.decays, storage.log_decay, thread);
    __syncthreads();  // tiles and decays are complete
    for (int i = 0; i < kEntries; i++) {
      const int k = warp + i * kWarps;
      Real sum = 0;
      for (int token = 0; token < kChunk; token++)
        sum += to_end(token) * storage.key[token][k] * storage.value[token][lane];
      state[i] = from_start(kChunk - 1) * state[i] + sum;
    }
    __syncthreads();  // they may be overwritten
  }

  DEVICE void load_state(Real (&state)[kEntries], const Real* source, int panel, int slice) {
    for (int i = 0; i < kEntries; i++) {
      const int k = warp + i * kWarps;
      state[i] = has(panel, k, slice) ? source[entry(panel, k, slice)] : Real(0);
    }
  }
  DEVICE void store_state(const Real (&state)[kEntries], Real* target, int panel, int slice) {
    for (int i = 0; i < kEntries; i++) {
      const int k = warp + i * kWarps;
      if (has(panel, k, slice)) target[entry(panel, k, slice)] = state[i];
    }
  }

  // Computes the checkpoints of all segments but the first, which is given.
  DEVICE void store_checkpoints(int panel, int slice) {
    Real state[kEntries];
    load_state(state, checkpoint(0), panel, slice);
    for (i64 segment = 1; segment < segments(); segment++) {
      for (int chunk = 0; chunk < kSegmentChunks; chunk++) {
        set_chunk((segment - 1) * segment_tokens() + chunk * kChunk);
        add_chunk(state, panel, slice);
      }
      store_state(state, checkpoint(segment), panel, slice);
    }
  }

  // Recomputes the states before all chunks of a segment from its checkpoint.
  DEVICE void recompute_states(i64 segment, int chunks) {
    for (int panel = 0; panel < features; panel += kPanel)
      for (int slice = 0; slice < width; slice += kPanel) {
        Real state[kEntries];
        load_state(state, checkpoint(segment), panel, slice);
        for (int chunk = 0; chunk < chunks; chunk++) {
          store_state(state, chunk_state(chunk), panel, slice);
          if (chunk + 1 == chunks) break;
          set_chunk(segment * segment_tokens() + chunk * kChunk);
          add_chunk(state, panel, slice);
        }
      }
  }
};
