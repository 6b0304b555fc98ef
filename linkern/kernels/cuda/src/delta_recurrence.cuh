// 16 columns of the values of a head, processed by one warp chunk by chunk:
//
//     (I + L) U = Diag(b) (V - Diag(e) K S)      e: decays from the start of the chunk
//     S <- e_C S + K^T Diag(f) U                 f: decays to the end of the chunk
//
// All is transposed: rows are columns of the values, so what was summed in registers is the
// left operand of the next product, and neither the state nor U goes through shared memory.
// The rows of U are found tile by tile: what is written behind a tile does not reach it.
#pragma once
#include "delta_storage.cuh"
#include "state_columns.cuh"

template <class Shape, bool Decay>
struct DeltaRecurrence : StateColumns<Shape, DeltaStorage<Shape>> {
  typedef StateColumns<Shape, DeltaStorage<Shape>> Base;
  typedef typename Base::Stored Stored;
  typedef typename Computed<typename Base::Io>::Type Wide;
  typedef OperandFragment<Wide> Factor;  // of what was computed
  typedef RecurrentParams<Stored, float> Params;
  static constexpr int kTiles = Shape::kTiles, kBlocks = Base::kBlocks;
  static constexpr bool kReverse = false;
  using Base::column, Base::scale_tokens, Base::state, Base::storage;
  const Params& params;

  DEVICE DeltaRecurrence(const Params& params, DeltaStorage<Shape>& storage, int warp)
      : Base(storage, warp), params(params) {
    const float* initial = storage.slice.head.initial_state;
    if (initial != nullptr) this->load(initial, params.sizes);
  }

  // S^T K^T and, where it is read, S^T Q^T.
  template <bool Read>
  DEVICE void multiply_state(const DeltaChunk<Shape>& chunk, Accumulator (&erased)[kTiles],
                             Accumulator (&read)[kTiles]) const {
#pragma unroll
    for (int k = 0; k < kBlocks; k++) {
      const Factor left = state[k].template as_left<Wide>();
#pragma unroll
      for (int tile = 0; tile < kTiles; tile++) {
        mma(erased[tile], left, chunk.keys().transposed_right(16 * tile, 16 * k));
        if (Read) mma(read[tile], left, chunk.queries().transposed_right(16 * tile, 16 * k));
      }
    }
  }

  // A step of forward substitution: what a tile writes, given what is erased of the state.
  DEVICE Accumulator solve(const DeltaChunk<Shape>& chunk, int number, int tile,
                           Accumulator& rest, const Factor (&factors)[kTiles]) const {
    const int slot = number % 2;
    const auto erases = storage.erases(slot);
    if (Decay) scale_tokens(rest, storage.entering[slot] + 16 * tile);
    this->subtract_from(rest, chunk.values().transposed_left(16 * tile, column));
    scale_tokens(rest, storage.beta[number % 3] + 16 * tile);
#pragma unroll
    for (int other = 0; other < kTiles; other++)
      if (other < tile)
        mma(rest, factors[other], erases.transposed_right(16 * tile, 16 * other));
    Accumulator solved = {};
    mma(solved, rest.template as_left<Wide>(), erases.transposed_right(16 * tile, 16 * tile));
    return solved;
  }

  // The state at the end of the chunk. The products of a chunk are summed in accumulators of
  // their own and added once, since a tensor core may truncate its sums.
  DEVICE void add_chunk(const DeltaChunk<Shape>& chunk, int slot,
                        Accumulator (&written)[kTiles]) {
    Factor kept[kTiles];  // what is left of U
#pragma unroll
    for (int tile = 0; tile < kTiles; tile++) {
      if (Decay) scale_tokens(written[tile], storage.leaving[slot] + 16 * tile);
      kept[tile] = written[tile].template as_left<Wide>();
    }
    const float decay = Decay ? storage.chunk_decay[slot] : 1.0f;
#pragma unroll
    for (int k = 0; k < kBlocks; k++) {
      Accumulator added = {};
#pragma unroll
      for (int tile = 0; tile < kTiles; tile++)
        mma(added, kept[tile], chunk.keys().right(16 * tile, 16 * k));
      state[k].decay_add(decay, added);
    }
  }
};
