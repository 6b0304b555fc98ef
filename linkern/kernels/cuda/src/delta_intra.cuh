// What a chunk needs that does not depend on the state, for one tile of 16 tokens as rows:
//
//     P_ij = Gamma_ij q_i^T k_j  for j <= i,      L_ij = b_i Gamma_ij k_i^T k_j  for j < i,
//
// with the decays Gamma_ij from token j to token i. Blocks of L are stored negated, so that
// products with them are added; of those on the diagonal the inverse of I + L is stored, by
// forward substitution.
#pragma once
#include "delta_storage.cuh"

template <class Shape, bool Decay> struct DeltaIntraTile {
  typedef typename Shape::Io Io;
  static constexpr int kTiles = Shape::kTiles;
  DeltaStorage<Shape>& storage;
  const DeltaChunk<Shape> chunk;
  const ChunkDecays<kTiles>& decays;
  const int number, slot, tile, group, pair;

  DEVICE DeltaIntraTile(DeltaStorage<Shape>& storage, const DeltaChunk<Shape>& chunk,
                        int number, int warp)
      : storage(storage), chunk(chunk), decays(storage.decays[number % 2]), number(number),
        slot(number % 2), tile(warp % kTiles), group(lane_id() / 4), pair(lane_id() % 4) {}

  DEVICE void compute_scores() {
    Accumulator scores[kTiles] = {};
    multiply(scores, chunk.queries());
#pragma unroll
    for (int other = 0; other < kTiles; other++) {
      if (other > tile) continue;
      weigh<false>(scores[other], other);
      storage.scores(slot).store(16 * tile, 16 * other, scores[other]);
    }
  }

  DEVICE void compute_erases() {
    Accumulator scores[kTiles] = {};
    multiply(scores, chunk.keys());
#pragma unroll
    for (int other = 0; other < kTiles; other++) {
      if (other > tile) continue;
      weigh<true>(scores[other], other);
      if (other < tile)
        storage.erases(slot).store(16 * tile, 16 * other, scores[other]);
      else
        store_diagonal(scores[other]);
    }
    if (Decay) store_factors();
    __syncwarp();  // the block on the diagonal is complete
    if (lane_id() < 16)
      store_inverse(storage.erases(slot), 16 * tile, storage.diagonal[tile], lane_id());
  }

  // Products of the rows of this tile with the keys up to it.
  template <class Rows> DEVICE void multiply(Accumulator (&scores)[kTiles], Rows rows) const {
#pragma unroll 2
    for (int k = 0; k < Shape::kFeatures; k += 16) {
      const OperandFragment<Io> left = rows.left(16 * tile, k);
#pragma unroll
      for (int other = 0; other < kTiles; other++)
        if (other <= tile)
          mma(scores[other], left, chunk.keys().transposed_right(16 * other, k));
    }
  }

  // Masks, decays and, for erases, multiplies with -beta of the row.
  template <bool Erases> DEVICE void weigh(Accumulator& block, int other) const {
    const bool earlier = other < tile;
#pragma unroll
    for (int down = 0; down < 2; down++) {
      const int query = group + 8 * down;
      float row = Erases ? -storage.beta[number % 3][16 * tile + query] : 1.0f;
      if (Decay && earlier)
        row *= decays.between(other, tile) * decays.from_start[16 * tile + query];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int key = 8 * half + 2 * pair;
        float2 by = make_float2(1.0f, 1.0f);
        if (Decay)
          by = load_shared((const float2*)(earlier ? decays.to_end + 16 * other + key
                                                   : &decays.decay_mask[tile][query][key]));
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const bool seen = earlier || key + i < query + (Erases ? 0 : 1);
          float& score = block.entry(down, half, i);
          score = seen ? score * row * (i ? by.y : by.x) : 0.0f;
        }
      }
    }
  }

  // Stores a block in float32: `store_inverse` reads its rows in units of 16 bytes.
  DEVICE void store_diagonal(const Accumulator& block) const {
    typedef Vector<float, 2> Two;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int down = 0; down < 2; down++) {
        const Two both = {{block.entry(down, half, 0), block.entry(down, half, 1)}};
        float* row = storage.diagonal[tile].row(group + 8 * down);
        store_shared((Two*)(row + 8 * half + 2 * pair), both);
      }
  }

  // Decays between the tokens of this tile and the ends of the chunk.
  DEVICE void store_factors() const {
    const int token = 16 * tile + lane_id();
    if (lane_id() < 16) {
      storage.entering[slot][token] = decays.between(-1, tile) * decays.from_start[token];
      storage.leaving[slot][token] = decays.to_end[token] * decays.between(tile, kTiles);
    }
    if (tile == 0 && lane_id() == 16)
      storage.chunk_decay[slot] = decays.between(-1, kTiles);
  }
};
