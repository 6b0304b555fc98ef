// What gradients need of the chunks of the delta rule, for 16 columns of the values of a head:
// the states at the edges of the chunks, and what each token writes.
#pragma once
#include "delta_recurrence.cuh"

template <class Stored> struct DeltaKeptParams : RecurrentParams<Stored, float> {
  float* states;   // (B H, chunks + 1, K, V)
  float* written;  // (B H, T, V)
};

// Pointers to the states and the rows of a head, from the first column of a block on.
template <class Shape> struct KeptHead {
  typedef typename Split<typename Shape::Io>::Stored Stored;
  float *states, *written;
  const Sizes& sizes;

  DEVICE KeptHead(const DeltaKeptParams<Stored>& params) : sizes(params.sizes) {
    const i64 slices = (sizes.values + Shape::kColumns - 1) / Shape::kColumns;
    const i64 head = blockIdx.x / slices, column = blockIdx.x % slices * Shape::kColumns;
    const i64 chunks = (sizes.tokens + Shape::kTokens - 1) / Shape::kTokens;
    states = params.states + head * (chunks + 1) * entries() + column;
    written = params.written + head * sizes.tokens * sizes.values + column;
  }
  DEVICE i64 entries() const { return i64(sizes.features) * sizes.values; }
  DEVICE float* state(int edge) const { return states + edge * entries(); }
  DEVICE float* rows(int number) const {
    return written + i64(number) * Shape::kTokens * sizes.values;
  }
};

// The forward pass once more: keeps S before each chunk, and U. Nothing is read.
template <class Shape, bool Decay> struct DeltaKeptColumns : DeltaRecurrence<Shape, Decay> {
  typedef DeltaRecurrence<Shape, Decay> Base;
  typedef DeltaKeptParams<typename Base::Stored> Params;
  typedef typename Base::Factor Factor;
  static constexpr bool kScores = false;
  static constexpr int kTiles = Shape::kTiles;
  const KeptHead<Shape> kept;

  DEVICE DeltaKeptColumns(const Params& params, DeltaStorage<Shape>& storage, int warp)
      : Base(params, storage, warp), kept(params) {}
  DEVICE void finish() {}

  DEVICE void process(const DeltaChunk<Shape>& chunk, int number) {
    this->store(kept.state(number), kept.sizes);
    Accumulator erased[kTiles] = {}, read[kTiles], written[kTiles];
    this->template multiply_state<false>(chunk, erased, read);
    Factor factors[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; tile++) {
      written[tile] = this->solve(chunk, number, tile, erased[tile], factors);
      factors[tile] = written[tile].template as_left<typename Base::Wide>();
      this->store_tile(written[tile], tile, chunk.count, kept.rows(number),
                       kept.sizes.values);
    }
    this->add_chunk(chunk, number % 2, written);
  }
};

// The reverse recurrence. With D, the gradient of the output, in the place of the values, and
// R, the gradient of the state after the chunk:
//
//     (I + L)^T Z = s P^T D + Diag(f) K R      dV = Diag(b) Z
//     R <- e_C R + (Diag(s e) Q)^T D - (Diag(e) K)^T dV
//
// with the legend of delta_recurrence.cuh. Keeps R after each chunk, and before the first; and Z.
template <class Shape, bool Decay> struct DeltaReverseColumns : DeltaRecurrence<Shape, Decay> {
  typedef DeltaRecurrence<Shape, Decay> Base;
  typedef typename Base::Stored Stored;
  typedef typename Base::Wide Wide;
  typedef typename Base::Factor Factor;
  typedef DeltaKeptParams<Stored> Params;
  static constexpr bool kReverse = true, kScores = true;
  static constexpr int kTiles = Shape::kTiles, kBlocks = Base::kBlocks;
  using Base::column, Base::params, Base::scale_tokens, Base::state, Base::storage;
  const KeptHead<Shape> kept;

  DEVICE DeltaReverseColumns(const Params& params, DeltaStorage<Shape>& storage, int warp)
      : Base(params, storage, warp), kept(params) {}
  DEVICE void finish() { this->store(kept.state(0), kept.sizes); }

  DEVICE void process(const DeltaChunk<Shape>& chunk, int number) {
    const i64 stride = params.output.token_stride;
    Stored* output = storage.slice.head.output + i64(number) * Shape::kTokens * stride;
    this->store(kept.state(number + 1), kept.sizes);
    const int slot = number % 2;
    Accumulator written[kTiles] = {}, read[kTiles];
    this->template multiply_state<false>(chunk, written, read);
    Factor solved[kTiles], erased[kTiles];
#pragma unroll
    for (int tile = kTiles - 1; tile >= 0; tile--) {
      Accumulator row = solve(chunk, slot, tile, written[tile], solved);
      solved[tile] = row.template as_left<Wide>();
      this->store_tile(row, tile, chunk.count, kept.rows(number), kept.sizes.values);
      scale_tokens(row, storage.beta[number % 3] + 16 * tile);
      __syncwarp();  // the gradients of the tile before have been read
      this->store_output(row, tile, chunk.count, output, stride, 1.0f);
      if (Decay) scale_tokens(row, storage.entering[slot] + 16 * tile);
      row.scale(-1.0f);
      erased[tile] = row.template as_left<Wide>();
    }
    add_chunk(chunk, slot, erased);
  }

  // A step of backward substitution: Z of a tile, given what it wrote to the state.
  DEVICE Accumulator solve(const DeltaChunk<Shape>& chunk, int slot, int tile,
                           Accumulator& written, const Factor (&solved)[kTiles]) const {
    const auto scores = storage.scores(slot), erases = storage.erases(slot);
    if (Decay) scale_tokens(written, storage.leaving[slot] + 16 * tile);
    Accumulator rest = {};
#pragma unroll
    for (int other = 0; other < kTiles; other++)
      if (other >= tile)
        mma(rest, chunk.values().transposed_left(16 * other, column),
            scores.right(16 * other, 16 * tile));
    rest.decay_add(params.scale, written);
#pragma unroll
    for (int other = 0; other < kTiles; other++)
      if (other > tile) mma(rest, solved[other], erases.right(16 * other, 16 * tile));
    Accumulator row = {};
    mma(row, rest.template as_left<Wide>(), erases.right(16 * tile, 16 * tile));
    return row;
  }

  // R before the chunk, given the erased rows: -e dV.
  DEVICE void add_chunk(const DeltaChunk<Shape>& chunk, int slot,
                        const Factor (&erased)[kTiles]) {
    Factor read[kTiles];  // s e D
#pragma unroll
    for (int tile = 0; tile < kTiles; tile++) {
      Accumulator row = {};
      this->subtract_from(row, chunk.values().transposed_left(16 * tile, column));
      row.scale(params.scale);
      if (Decay) scale_tokens(row, storage.entering[slot] + 16 * tile);
      read[tile] = row.template as_left<Wide>();
    }
    const float decay = Decay ? storage.chunk_decay[slot] : 1.0f;
#pragma unroll
    for (int k = 0; k < kBlocks; k++) {
      Accumulator added = {};
#pragma unroll
      for (int tile = 0; tile < kTiles; tile++) {
        mma(added, read[tile], chunk.queries().right(16 * tile, 16 * k));
        mma(added, erased[tile], chunk.keys().right(16 * tile, 16 * k));
      }
      state[k].decay_add(decay, added);
    }
  }
};
