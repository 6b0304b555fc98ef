// The head of a block of threads, from the first of its columns of the values on.
#pragma once
#include "chunk_tiles.cuh"
#include "recurrent.cuh"

// What a token writes depends on the state, so that errors of operands would add up. Hence
// all that is computed is multiplied as float32 if rows are; for 16-bit rows, which have 8
// or 11 bits, it has two parts, and so 16 bits.
template <class Io> struct Computed {
  typedef f32_split Type;
};
template <> struct Computed<float> {
  typedef float Type;
};

template <class Shape, int Decay, int Erase> struct HeadSlice {
  typedef typename Split<typename Shape::Io>::Stored Stored;
  HeadRows<Stored, float, Decay, Erase> head;
  int columns;  // of the block, and those behind it

  // Sets the head and the columns of a block of threads.
  DEVICE void select(const RecurrentParams<Stored, float>& params, i64 block) {
    const i64 slices = (params.sizes.values + Shape::kColumns - 1) / Shape::kColumns;
    const int column = int(block % slices) * Shape::kColumns;
    head = HeadRows<Stored, float, Decay, Erase>(params, block / slices);
    head.value += column;
    head.output += column;
    head.state += column;
    if (head.initial_state != nullptr) head.initial_state += column;
    columns = params.sizes.values - column;
  }
};
