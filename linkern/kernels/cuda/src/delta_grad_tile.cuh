// Gradients of 16 tokens of a chunk of the delta rule in a slice of the features, computed by
// one warp; the formulas are in chunk_delta_bwd.cu.
#pragma once
#include "delta_grad_storage.cuh"
#include "token_tile.cuh"

template <class Shape, bool Decay> struct DeltaGradTile : TokenTile<Shape> {
  typedef TokenTile<Shape> Base;
  typedef DeltaGradStorage<Shape> Storage;
  typedef typename Base::Stored Stored;
  typedef OperandFragment<typename Shape::Io> Row;
  typedef OperandFragment<typename Storage::Wide> WideRow;
  using Base::group, Base::pair, Base::row, Base::tile;
  static constexpr int kTiles = Shape::kTiles, kSlices = Storage::kSlices;
  static constexpr int kBlocks = Shape::kFeatureBlocks / kSlices;       // of the slice
  static constexpr int kScoreTiles = (kTiles + kSlices - 1) / kSlices;  // of each warp
  static_assert(kBlocks * kSlices == Shape::kFeatureBlocks, "slices of whole blocks");
  Storage& storage;
  const int warp, slice;
  // D S^T, Z S^T and U R^T: what the states give to queries, erases and keys.
  Accumulator read[kBlocks] = {}, erased[kBlocks] = {}, wrote[kBlocks] = {};
  Accumulator read_grads[kScoreTiles] = {}, erase_grads[kScoreTiles] = {};  // D U^T, Z U^T
  float across = 0;    // inner product of the states
  float direct[2] = {};  // z^T v of rows g and g + 8

  DEVICE DeltaGradTile(Storage& storage, int warp, int count)
      : Base(storage.decays, warp % kTiles, count), storage(storage), warp(warp),
        slice(warp / kTiles) {}

  DEVICE int feature(int k) const { return 16 * (slice * kBlocks + k); }
  DEVICE int other(int m) const { return slice + m * kSlices; }  // a tile of keys

  // Adds the products of a panel of the columns.
  DEVICE void add_panel() {
    const auto state = storage.state.matrix(), state_grad = storage.state_grad.matrix();
    const auto written = storage.written.matrix();
#pragma unroll 1
    for (int n = 0; n < Shape::kColumns; n += 16) {
      const Row output_grads = storage.output_grads.matrix().left(16 * tile, n);
      const WideRow grads = storage.written_grads.matrix().left(16 * tile, n);
      const WideRow rows = written.left(16 * tile, n);
#pragma unroll
      for (int k = 0; k < kBlocks; k++) {
        const WideRow before = state.transposed_right(feature(k), n);
        mma(read[k], output_grads, before);
        mma(erased[k], grads, before);
        mma(wrote[k], rows, state_grad.transposed_right(feature(k), n));
      }
#pragma unroll
      for (int m = 0; m < kScoreTiles; m++) {
        if (other(m) > tile) continue;
        const WideRow keys = written.transposed_right(16 * other(m), n);
        mma(read_grads[m], output_grads, keys);
        mma(erase_grads[m], grads, keys);
      }
      if (slice == 0) add_rows(direct, grads, storage.values.matrix().left(16 * tile, n));
#pragma unroll 1
      for (int k = 0; Decay && tile == 0 && k < kBlocks; k++)
        across += dot(state.left(feature(k), n), state_grad.left(feature(k), n));
    }
  }

  // Stores the gradients of scores for all warps, and what gates and log-decays need.
  DEVICE void store_scores(float scale) {
    float2 shares[2] = {};
    float wrote_shares[2] = {};
    float entering[2], leaving[2], beta[2];
#pragma unroll
    for (int down = 0; down < 2; down++) {
      entering[down] = Decay ? Base::entering(down) : 1.0f;
      leaving[down] = Decay ? Base::leaving(down) : 1.0f;
      beta[down] = storage.beta[row(down)];
    }
    const float read_factors[2] = {scale * entering[0], scale * entering[1]};
#pragma unroll
    for (int k = 0; k < kBlocks; k++) {
      read[k].scale_rows(read_factors);
      erased[k].scale_rows(entering);
      wrote[k].scale_rows(leaving);
      const Row queries = storage.queries.matrix().left(16 * tile, feature(k));
      const Row keys = storage.keys.matrix().left(16 * tile, feature(k));
      float reads[2] = {}, erases[2] = {};
      add_rows(reads, queries, read[k]);
      add_rows(erases, keys, erased[k]);
      add_rows(wrote_shares, keys, wrote[k]);
#pragma unroll
      for (int down = 0; down < 2; down++) {
        shares[down].x += reads[down] - beta[down] * erases[down];
        shares[down].y -= erases[down];
      }
      const float factors[2] = {-beta[0], -beta[1]};
      erased[k].scale_rows(factors);
    }
#pragma unroll
    for (int m = 0; m < kScoreTiles; m++)
      if (other(m) <= tile) store_block(m, scale, beta, shares);
#pragma unroll
    for (int down = 0; down < 2; down++) {
      if (slice == 0) shares[down].y += direct[down];
      const float2 sums = make_float2(quad_sum(shares[down].x), quad_sum(shares[down].y));
      const float to_state = quad_sum(wrote_shares[down]);
      if (pair > 0) continue;
      store_shared(&storage.row_sums[slice][row(down)], sums);
      store_shared(&storage.decay_grad.to_state[slice][row(down)], to_state);
    }
    if (!Decay) return;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      across += __shfl_xor_sync(kAllLanes, across, distance);
    if (lane_id() == 0)
      storage.decay_grad.across[warp] = storage.decays.between(-1, kTiles) * across;
  }

  // Gradients of the scores of this tile with another one.
  DEVICE void store_block(int m, float scale, const float (&beta)[2], float2 (&shares)[2]) {
    Accumulator reads = multiply_keys(storage.queries.matrix(), other(m));
    Accumulator erases = multiply_keys(storage.keys.matrix(), other(m));
    read_grads[m].scale(scale);
    if (Decay) this->apply_decay(read_grads[m], other(m));
    if (Decay) this->apply_decay(erase_grads[m], other(m));
    this->apply_causal_mask(read_grads[m], other(m));
    this->apply_causal_mask(erase_grads[m], other(m), true);
    this->each_entry([&](int down, int half, int next) {
      float& grad = erase_grads[m].entry(down, half, next);
      const float share = grad * erases.entry(down, half, next);
      shares[down].y -= share;
      reads.entry(down, half, next) *= read_grads[m].entry(down, half, next);
      reads.entry(down, half, next) -= beta[down] * share;
      grad *= -beta[down];
    });
    if (Decay) storage.decay_grad.add_tile(tile, other(m), reads);
    storage.read_grads().store(16 * tile, 16 * other(m), read_grads[m]);
    storage.erase_grads().store(16 * tile, 16 * other(m), erase_grads[m]);
  }

  DEVICE void compute_dq(Stored* target, i64 stride, int features) {
    const auto grads = storage.read_grads();
    const auto keys = storage.keys.matrix();
#pragma unroll
    for (int other = 0; other < kTiles; other++) {
      if (other > tile) continue;
      const WideRow left = grads.left(16 * tile, 16 * other);
#pragma unroll
      for (int k = 0; k < kBlocks; k++) mma(read[k], left, keys.right(16 * other, feature(k)));
    }
#pragma unroll
    for (int k = 0; k < kBlocks; k++)
      this->store(read[k], target, stride, feature(k), features);
  }

  DEVICE void compute_dk(Stored* target, i64 stride, int features) {
    const auto read_grads = storage.read_grads(), erase_grads = storage.erase_grads();
    const auto queries = storage.queries.matrix();
    const auto keys = storage.keys.matrix();
#pragma unroll
    for (int other = 0; other < kTiles; other++) {
      if (other <= tile) {
        const WideRow left = erase_grads.left(16 * tile, 16 * other);
#pragma unroll
        for (int k = 0; k < kBlocks; k++)
          mma(erased[k], left, keys.right(16 * other, feature(k)));
      }
      if (other < tile) continue;
      const WideRow erases = erase_grads.transposed_left(16 * other, 16 * tile);
      const WideRow reads = read_grads.transposed_left(16 * other, 16 * tile);
#pragma unroll
      for (int k = 0; k < kBlocks; k++) {
        mma(erased[k], erases, keys.right(16 * other, feature(k)));
        mma(wrote[k], reads, queries.right(16 * other, feature(k)));
      }
    }
#pragma unroll
    for (int k = 0; k < kBlocks; k++) {
      erased[k].decay_add(1.0f, wrote[k]);
      this->store(erased[k], target, stride, feature(k), features);
    }
  }

  // Inner products of the rows of this tile with the keys of another one.
  template <class Rows> DEVICE Accumulator multiply_keys(Rows rows, int other) const {
    Accumulator products = {};
#pragma unroll 1
    for (int k = 0; k < Shape::kFeatures; k += 16)
      mma(products, rows.left(16 * tile, k),
          storage.keys.matrix().transposed_right(16 * other, k));
    return products;
  }

  // Adds the inner products of rows. A left operand has its pairs where an accumulator has
  // its entries.
  template <class Io>
  DEVICE static void add_rows(float (&sums)[2], const OperandFragment<Io>& rows,
                              const Accumulator& block) {
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const SplitPair<Io> both = rows.pair(r);
      sums[r % 2] += both.first() * block.entry(r % 2, r / 2, 0) +
                     both.second() * block.entry(r % 2, r / 2, 1);
    }
  }
  template <class Left, class Right>
  DEVICE static void add_rows(float (&sums)[2], const OperandFragment<Left>& rows,
                              const OperandFragment<Right>& others) {
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const SplitPair<Left> both = rows.pair(r);
      const SplitPair<Right> with = others.pair(r);
      sums[r % 2] += both.first() * with.first() + both.second() * with.second();
    }
  }
  DEVICE static float dot(const WideRow& block, const WideRow& other) {
    float sums[2] = {};
    add_rows(sums, block, other);
    return sums[0] + sums[1];
  }
};
