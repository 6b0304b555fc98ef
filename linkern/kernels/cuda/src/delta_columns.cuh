// The output of the same columns, with the legend of delta_recurrence.cuh:
//
//     O = s (Diag(e) Q S + P U)
#pragma once
#include "delta_recurrence.cuh"

template <class Shape, bool Decay> struct DeltaColumns : DeltaRecurrence<Shape, Decay> {
  typedef DeltaRecurrence<Shape, Decay> Base;
  typedef typename Base::Stored Stored;
  typedef typename Base::Wide Wide;
  typedef typename Base::Factor Factor;
  static constexpr int kTiles = Shape::kTiles;
  static constexpr bool kScores = true;
  using Base::Base;
  using Base::params, Base::scale_tokens, Base::storage;

  DEVICE void process(const DeltaChunk<Shape>& chunk, int number) {
    const int slot = number % 2;
    const i64 stride = params.output.token_stride;
    Stored* output = storage.slice.head.output + i64(number) * Shape::kTokens * stride;
    Accumulator erased[kTiles] = {}, read[kTiles] = {};
    this->template multiply_state<true>(chunk, erased, read);
    Accumulator written[kTiles];  // U
    Factor factors[kTiles];       // the same as a left operand
#pragma unroll
    for (int tile = 0; tile < kTiles; tile++) {
      written[tile] = this->solve(chunk, number, tile, erased[tile], factors);
      factors[tile] = written[tile].template as_left<Wide>();
      add_scores(slot, tile, read[tile], factors);
      __syncwarp();  // the output of the tile before has been read
      this->store_output(read[tile], tile, chunk.count, output, stride, params.scale);
    }
    this->add_chunk(chunk, slot, written);
  }

  DEVICE void finish() { this->store(storage.slice.head.state, params.sizes); }

  // read = Diag(e) read + P U for a tile.
  DEVICE void add_scores(int slot, int tile, Accumulator& read,
                         const Factor (&factors)[kTiles]) const {
    const auto scores = storage.scores(slot);
    if (Decay) scale_tokens(read, storage.entering[slot] + 16 * tile);
#pragma unroll
    for (int other = 0; other < kTiles; other++)
      if (other <= tile)
        mma(read, factors[other], scores.transposed_right(16 * tile, 16 * other));
  }
};
