// Gradients of a tile of 16 tokens in a slice of the columns, computed by one warp; the
// formulas are in chunk_bwd.cu.
//
// dQ needs the state before the chunk and the score tiles up to the warp's own. dK and dV
// need the gradient of the state after the chunk and the score tiles at and after their own.
// Every warp therefore multiplies the same number of tiles.
#pragma once
#include "bwd_storage.cuh"
#include "token_tile.cuh"

template <class Shape, int Map, bool Decay, bool Normalize>
struct GradTile : TokenTile<Shape> {
  typedef TokenTile<Shape> Base;
  typedef typename Shape::Io Io;
  typedef typename Split<Io>::Stored Stored;
  typedef ChunkTiles<Shape, true> Chunk;
  using Base::apply_causal_mask, Base::apply_decay, Base::each_entry, Base::row, Base::store;
  using Base::group, Base::pair, Base::tile;
  static constexpr int kTiles = Shape::kTiles, kSlices = BwdStorage<Shape>::kSlices;
  // Blocks of one slice; the first slices have them all if there are too few.
  static constexpr int kFeatureBlocks =
      Shape::kFeatureBlocks < kSlices ? 1 : Shape::kFeatureBlocks / kSlices;
  static constexpr int kColumnBlocks =
      Shape::kColumnBlocks < kSlices ? 1 : Shape::kColumnBlocks / kSlices;
  static constexpr int kScoreTiles = (kTiles + kSlices - 1) / kSlices;  // of each warp
  // Blocks and tiles whose operands are loaded at once: as many as there are registers for.
  static constexpr int kUnrolled = Shape::kFeatureBlocks <= 4 && kTiles > 1 ? 4 : 2;
  BwdStorage<Shape>& storage;
  const Chunk chunk;
  const int slice;
  const bool has_features, has_values;  // whether this slice has any
  // Decays of rows g and g + 8: from the start and to the end of the chunk.
  float from_start[2] = {1, 1}, to_end[2] = {1, 1};
  float factors[2] = {}, shifts[2] = {};        // of these rows: 1 / u or s, and d
  Accumulator query_grad[kFeatureBlocks] = {};  // dO S^T first, dQ at last
  // P, and dO V^T first, A at last.
  Accumulator scores[kScoreTiles] = {}, score_grads[kScoreTiles] = {};

  DEVICE GradTile(BwdStorage<Shape>& storage, const Chunk& chunk, int warp)
      : Base(storage.decays, warp % kTiles, chunk.count), storage(storage), chunk(chunk),
        slice(warp / kTiles), has_features(slice * kFeatureBlocks < Shape::kFeatureBlocks),
        has_values(slice * kColumnBlocks < Shape::kColumnBlocks) {
    if (!Decay) return;
#pragma unroll
    for (int down = 0; down < 2; down++) {
      from_start[down] = Base::entering(down);
      to_end[down] = Base::leaving(down);
    }
  }

  DEVICE int feature(int k) const { return 16 * (slice * kFeatureBlocks + k); }
  DEVICE int column(int n) const { return 16 * (slice * kColumnBlocks + n); }

  // Computes dO S^T, P and dO V^T, and stores for each row and slice: the weight and the
  // inner product of output and output gradient due to the state (x, y) and due to keys of
  // the chunk (z, w).
  DEVICE void store_row_sums() {
    float4 sums[2] = {};
    if (has_features) multiply_state(sums);
#pragma unroll
    for (int m = 0; m < kScoreTiles; m++) {
      const int other = slice + m * kSlices;
      if (other > tile) continue;
      scores[m] = multiply_rows(chunk.queries(), chunk.keys(), other);
      score_grads[m] = multiply_rows(chunk.output_grads(), chunk.values(), other);
      if (Decay) apply_decay(scores[m], other);
      apply_causal_mask(scores[m], other);
      apply_causal_mask(score_grads[m], other);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const float x = scores[m].entry(i / 4, i / 2 % 2, i % 2);
        sums[i / 4].z += x;
        sums[i / 4].w += x * score_grads[m].entry(i / 4, i / 2 % 2, i % 2);
      }
    }
    if (!Normalize && !Decay) return;
#pragma unroll
    for (int down = 0; down < 2; down++) {
      const float4 all = make_float4(quad_sum(sums[down].x), quad_sum(sums[down].y),
                                     quad_sum(sums[down].z), quad_sum(sums[down].w));
      if (pair == 0) store_shared(&storage.row_sums[slice][row(down)], all);
    }
  }
  DEVICE void multiply_state(float4 (&sums)[2]) {
#pragma unroll kUnrolled
    for (int n = 0; n < Shape::kColumnBlocks; n++) {
      const OperandFragment<Io> rows = chunk.output_grads().left(16 * tile, 16 * n);
#pragma unroll
      for (int k = 0; k < kFeatureBlocks; k++)
        mma(query_grad[k], rows,
            storage.state.matrix().transposed_right(feature(k), 16 * n));
    }
#pragma unroll
    for (int k = 0; k < kFeatureBlocks; k++) {
      query_grad[k].scale_rows(from_start);
      const OperandFragment<Io> rows = chunk.queries().left(16 * tile, feature(k));
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int down = r % 2, half = r / 2;
        const SplitPair<Io> both = rows.pair(r);
        if (Normalize) {
          const float2 by = normalizer_pair(storage.state, feature(k), half);
          sums[down].x += from_start[down] * (both.first() * by.x + both.second() * by.y);
        }
        sums[down].y += both.first() * query_grad[k].entry(down, half, 0) +
                        both.second() * query_grad[k].entry(down, half, 1);
      }
    }
  }

  // Computes 1 / u or s, and d, of each row from the sums over all slices.
  DEVICE void compute_row_factors(float scale) {
#pragma unroll
    for (int down = 0; down < 2; down++) {
      const float4 all = total_row_sums(row(down));
      const bool valid = row(down) < chunk.count;
      factors[down] = !valid ? 0.0f : Normalize ? 1.0f / (all.x + all.z) : scale;
      shifts[down] =
          valid && Normalize ? -factors[down] * (factors[down] * (all.y + all.w)) : 0.0f;
      if (slice > 0 || pair > 0) continue;
      store_shared(storage.query_factors + row(down), from_start[down] * factors[down]);
      store_shared(storage.query_shifts + row(down), from_start[down] * shifts[down]);
      if (Decay)
        store_shared(storage.decay_grad.from_state + row(down),
                     factors[down] * all.y + shifts[down] * all.x);
    }
  }
  // Stores P / u and A for all warps, and their shares of the gradients of log-decays.
  DEVICE void store_scores() {
#pragma unroll
    for (int k = 0; k < kFeatureBlocks; k++) {
      query_grad[k].scale_rows(factors);
      if (!Normalize || !has_features) continue;
      const float decayed[2] = {from_start[0] * shifts[0], from_start[1] * shifts[1]};
      add_normalizer(query_grad[k], decayed, storage.state, feature(k));
    }
#pragma unroll
    for (int m = 0; m < kScoreTiles; m++) {
      const int other = slice + m * kSlices;
      if (other > tile) continue;
      Accumulator shares = scores[m];
      each_entry([&](int down, int half, int next) {
        float& x = score_grads[m].entry(down, half, next);
        x = factors[down] * x + shifts[down];
      });
      apply_causal_mask(score_grads[m], other);
      each_entry([&](int down, int half, int next) {
        shares.entry(down, half, next) *= score_grads[m].entry(down, half, next);
      });
      if (Decay) storage.decay_grad.add_tile(tile, other, shares);
      if (Decay) apply_decay(score_grads[m], other);
      scores[m].scale_rows(factors);
      storage.scores().store(16 * tile, 16 * other, scores[m]);
      storage.score_grads().store(16 * tile, 16 * other, score_grads[m]);
    }
  }
  DEVICE float4 total_row_sums(int row) const {
    float4 all = make_float4(0, 0, 0, 0);
    if (!Normalize && !Decay) return all;
#pragma unroll
    for (int p = 0; p < kSlices; p++) {
      const float4 more = load_shared(&storage.row_sums[p][row]);
      all.x += more.x, all.y += more.y, all.z += more.z, all.w += more.w;
    }
    return all;
  }

  DEVICE void compute_dq(Stored* target, i64 stride, int features) {
    if (!has_features) return;
#pragma unroll kUnrolled
    for (int other = 0; other < kTiles; other++) {
      if (other > tile) continue;
      const OperandFragment<Io> left = storage.score_grads().left(16 * tile, 16 * other);
#pragma unroll
      for (int k = 0; k < kFeatureBlocks; k++)
        mma(query_grad[k], left, chunk.keys().right(16 * other, feature(k)));
    }
#pragma unroll
    for (int k = 0; k < kFeatureBlocks; k++) {
      apply_map_derivative(query_grad[k], chunk.queries().left(16 * tile, feature(k)));
      store(query_grad[k], target, stride, feature(k), features);
    }
  }

  DEVICE void compute_dk(Stored* target, i64 stride, int features) {
    float shares[2] = {};
    Accumulator key_grad[kFeatureBlocks] = {};
    if (has_features) {
#pragma unroll kUnrolled
      for (int n = 0; n < Shape::kColumnBlocks; n++) {
        const OperandFragment<Io> rows = chunk.values().left(16 * tile, 16 * n);
#pragma unroll
        for (int k = 0; k < kFeatureBlocks; k++)
          mma(key_grad[k], rows,
              storage.dstate.matrix().transposed_right(feature(k), 16 * n));
      }
      const float ones[2] = {1.0f, 1.0f};
#pragma unroll
      for (int k = 0; k < kFeatureBlocks; k++) {
        if (Normalize) add_normalizer(key_grad[k], ones, storage.dstate, feature(k));
        if (!Decay) continue;
        key_grad[k].scale_rows(to_end);
        const OperandFragment<Io> rows = chunk.keys().left(16 * tile, feature(k));
#pragma unroll
        for (int r = 0; r < 4; r++)
          shares[r % 2] += rows.pair(r).first() * key_grad[k].entry(r % 2, r / 2, 0) +
                           rows.pair(r).second() * key_grad[k].entry(r % 2, r / 2, 1);
      }
    }
    if (Decay)
#pragma unroll
      for (int down = 0; down < 2; down++) {
        const float sum = quad_sum(shares[down]);
        if (pair == 0) store_shared(&storage.decay_grad.to_state[slice][row(down)], sum);
      }
    if (!has_features) return;
#pragma unroll kUnrolled
    for (int other = 0; other < kTiles; other++) {
      if (other < tile) continue;
      const OperandFragment<Io> left =
          storage.score_grads().transposed_left(16 * other, 16 * tile);
#pragma unroll
      for (int k = 0; k < kFeatureBlocks; k++)
        mma(key_grad[k], left, chunk.queries().right(16 * other, feature(k)));
    }
#pragma unroll
    for (int k = 0; k < kFeatureBlocks; k++) {
      apply_map_derivative(key_grad[k], chunk.keys().left(16 * tile, feature(k)));
      store(key_grad[k], target, stride, feature(k), features);
    }
  }

  DEVICE void compute_dv(Stored* target, i64 stride, int values) {
    if (!has_values) return;
    Accumulator value_grad[kColumnBlocks] = {};
#pragma unroll kUnrolled
    for (int k = 0; k < Shape::kFeatureBlocks; k++) {
      const OperandFragment<Io> rows = chunk.keys().left(16 * tile, 16 * k);
#pragma unroll
      for (int n = 0; n < kColumnBlocks; n++)
        mma(value_grad[n], rows, storage.dstate.matrix().right(16 * k, column(n)));
    }
#pragma unroll
    for (int n = 0; n < kColumnBlocks; n++) value_grad[n].scale_rows(to_end);
#pragma unroll kUnrolled
    for (int other = 0; other < kTiles; other++) {
      if (other < tile) continue;
      const OperandFragment<Io> left =
          storage.scores().transposed_left(16 * other, 16 * tile);
#pragma unroll
      for (int n = 0; n < kColumnBlocks; n++)
        mma(value_grad[n], left, chunk.output_grads().right(16 * other, column(n)));
    }
#pragma unroll
    for (int n = 0; n < kColumnBlocks; n++)
      store(value_grad[n], target, stride, column(n), values);
  }

  // Inner products of the rows of this tile with those of another one.
  template <int Width>
  DEVICE Accumulator multiply_rows(SmemMatrix<Io, Shape::kTokens, Width> rows,
                                   SmemMatrix<Io, Shape::kTokens, Width> others,
                                   int other) const {
    Accumulator products = {};
#pragma unroll kUnrolled
    for (int k = 0; k < Width; k += 16)
      mma(products, rows.left(16 * tile, k), others.transposed_right(16 * other, k));
    return products;
  }

  DEVICE float2 normalizer_pair(const StateTile<Shape>& state, int column, int half) const {
    return load_shared((const float2*)(state.normalizer + column + 8 * half + 2 * pair));
  }
  // Adds a multiple of the normalizer to each row.
  DEVICE void add_normalizer(Accumulator& block, const float (&factors)[2],
                             const StateTile<Shape>& state, int column) const {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float2 both = normalizer_pair(state, column, i % 2);
      block.entry(i / 2, i % 2, 0) += factors[i / 2] * both.x;
      block.entry(i / 2, i % 2, 1) += factors[i / 2] * both.y;
    }
  }
  // A left operand has its pairs where an accumulator has its entries.
  DEVICE void apply_map_derivative(Accumulator& block,
                                   const OperandFragment<Io>& features) const {
    if (Map == IDENTITY) return;
#pragma unroll
    for (int r = 0; r < 4; r++) {
      block.entry(r % 2, r / 2, 0) *= map_derivative<Map>(features.pair(r).first());
      block.entry(r % 2, r / 2, 1) *= map_derivative<Map>(features.pair(r).second());
    }
  }
};
