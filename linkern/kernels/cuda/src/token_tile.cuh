// A tile of 16 tokens in gradients of a chunk: masks and decays of its blocks of scores, and
// stores of its rows.
#pragma once
#include "chunk_tiles.cuh"

// Stores a row of an accumulator to global memory, as far as there are columns. The four
// lanes of a row write 32 contiguous bytes.
DEVICE void store_row(float* target, const Accumulator& block, int down, int columns) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int at = 8 * half + lane_id() % 4 * 2;
    const float2 two = make_float2(block.entry(down, half, 0), block.entry(down, half, 1));
    if (at < columns) *(float2*)(target + at) = two;
  }
}
template <class Half>
DEVICE void store_row(Half* target, const Accumulator& block, int down, int columns) {
  const int lane = lane_id(), pair = lane % 4, source = lane / 4 * 4 + pair % 2 * 2;
  Words<2> four;
#pragma unroll
  for (int next = 0; next < 2; next++) {
    u32 halves[2];
#pragma unroll
    for (int half = 0; half < 2; half++)
      halves[half] = __shfl_sync(
          kAllLanes, pack(Half(), block.entry(down, half, 0), block.entry(down, half, 1)),
          source + next);
    four.words[next] = pair < 2 ? halves[0] : halves[1];
  }
  if (4 * pair < columns) *(Words<2>*)(target + 4 * pair) = four;
}

template <class Shape> struct TokenTile {
  typedef typename Split<typename Shape::Io>::Stored Stored;
  static constexpr int kTiles = Shape::kTiles;
  const ChunkDecays<kTiles>& decays;
  const int tile, group, pair;
  const int count;  // tokens of the chunk

  DEVICE TokenTile(const ChunkDecays<kTiles>& decays, int tile, int count)
      : decays(decays), tile(tile), group(lane_id() / 4), pair(lane_id() % 4), count(count) {}

  DEVICE int row(int down) const { return 16 * tile + group + 8 * down; }
  // Decays from the start of the chunk to a row, and from a row to the end of the chunk.
  DEVICE float entering(int down) const {
    return decays.from_start[row(down)] * decays.between(-1, tile);
  }
  DEVICE float leaving(int down) const {
    return decays.to_end[row(down)] * decays.between(tile, kTiles);
  }

  // Visits all entries of this lane.
  template <class Visit> DEVICE static void each_entry(Visit visit) {
#pragma unroll
    for (int i = 0; i < 8; i++) visit(i / 4, i / 2 % 2, i % 2);
  }
  // Sets scores with keys behind the query to zero; those with its own key, if it is `strict`.
  DEVICE void apply_causal_mask(Accumulator& block, int other, bool strict = false) const {
    each_entry([&](int down, int half, int next) {
      const int key = 8 * half + 2 * pair + next;
      if (other == tile && key + strict > group + 8 * down) block.entry(down, half, next) = 0.0f;
    });
  }
  // Multiplies by the decay from each key to each query.
  DEVICE void apply_decay(Accumulator& block, int other) const {
    const float between = other < tile ? decays.between(other, tile) : 1.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int down = i / 2, half = i % 2, key = 8 * half + 2 * pair;
      const int query = group + 8 * down;
      const float decay = other < tile ? between * decays.from_start[row(down)] : 1.0f;
      const float* address = other < tile ? decays.to_end + 16 * other + key
                                          : &decays.decay_mask[tile][query][key];
      const float2 by = load_shared((const float2*)address);
      block.entry(down, half, 0) *= decay * by.x;
      block.entry(down, half, 1) *= decay * by.y;
    }
  }
  DEVICE void store(const Accumulator& block, Stored* target, i64 stride, int column,
                    int columns) const {
#pragma unroll
    for (int down = 0; down < 2; down++)
      store_row(target + row(down) * stride + column, block, down,
                row(down) < count ? columns - column : 0);
  }
};
