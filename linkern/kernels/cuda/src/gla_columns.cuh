// 16 columns of the values of a head, processed by one warp chunk by chunk:
//
//     U = (I + L)^-1 Diag(b) (V - K~ S)      K~, Q~: decayed from the start of the chunk
//     O = Q~ S + P U                         K^: decayed to the end of the chunk
//     S <- Diag(e_C) S + K^^T U
//
// Without erases, U = V.
#pragma once
#include "gla_storage.cuh"
#include "state_columns.cuh"

template <class Shape, bool Erases>
struct GlaColumns : StateColumns<Shape, GlaStorage<Shape, Erases>> {
  typedef StateColumns<Shape, GlaStorage<Shape, Erases>> Base;
  typedef typename Base::Io Io;
  typedef typename Base::Stored Stored;
  typedef typename Computed<Io>::Type Wide;
  typedef OperandFragment<Wide> Factor;  // of what was computed
  using Base::Base;
  using Base::column;
  using Base::kBlocks;
  using Base::pair;
  using Base::state;
  using Base::storage;
  Accumulator erased, read;  // S^T K~^T and S^T Q~^T

  DEVICE void multiply_state(int number) {
    const int slot = number % 2;
    erased = read = Accumulator();
#pragma unroll
    for (int k = 0; k < kBlocks; k++) {
      const Factor left = state[k].template as_left<Wide>();
      if (Erases) mma(erased, left, storage.operands(slot, ERASES).transposed_right(0, 16 * k));
      mma(read, left, storage.operands(slot, READS).transposed_right(0, 16 * k));
    }
  }

  // The output of the chunk, and the state at its end.
  DEVICE void finish(const GlaChunk<Shape>& chunk, int number, Stored* output, i64 stride,
                     float scale) {
    const OperandFragment<Io> values = chunk.values().transposed_left(0, column);
    if (Erases)
      finish(solve(number, values), chunk.count, number, output, stride, scale);
    else
      finish(values, chunk.count, number, output, stride, scale);
  }

 private:
  // U.
  DEVICE Factor solve(int number, const OperandFragment<Io>& values) {
    this->subtract_from(erased, values);
    this->scale_tokens(erased, storage.beta[number % 3]);
    Accumulator solved = {};
    mma(solved, erased.template as_left<Wide>(),
        storage.inverse(number % 2).transposed_right(0, 0));
    return solved.template as_left<Wide>();
  }

  template <class Written>
  DEVICE void finish(const Written& written, int count, int number, Stored* output, i64 stride,
                     float scale) {
    const int slot = number % 2;
    mma(read, written, storage.scores(slot).transposed_right(0, 0));
    this->store_output(read, 0, count, output, stride, scale);
    // The products of a chunk are summed in accumulators of their own and added once, since a
    // tensor core may truncate its sums.
#pragma unroll
    for (int k = 0; k < kBlocks; k++) {
      Accumulator added = {};
      mma(added, written, storage.operands(slot, WRITES).right(0, 16 * k));
      decay_add(state[k], storage.chunk_decay[slot] + 16 * k, added);
    }
  }
  // block = decays * block + added, with a decay for each feature, a column of the block.
  DEVICE void decay_add(Accumulator& block, const float* decays,
                        const Accumulator& added) const {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float2 by = load_shared((const float2*)(decays + 8 * half + 2 * pair));
#pragma unroll
      for (int down = 0; down < 2; down++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float& entry = block.entry(down, half, i);
          entry = (i ? by.y : by.x) * entry + added.entry(down, half, i);
        }
    }
  }
};
