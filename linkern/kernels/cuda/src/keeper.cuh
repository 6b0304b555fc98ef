// What one warp keeps of the memory, in its registers and in float32, and the normalizer of
// its rows.
//
// What a chunk adds is summed apart and then added once, since a tensor core may cut its
// sums off.
#pragma once
#include "chunks.cuh"

template <class Cut, bool Decay, bool Normalize> struct Keeper {
  typedef typename Cut::Io Io;
  static constexpr int kTall = Cut::kKeptTall, kWide = Cut::kKeptWide;
  // Tiles that are added side by side: where much is kept, registers are few.
  static constexpr int kAtOnce = kTall * kWide < 8 ? Cut::kTiles : 1;
  const int row, column, group, pair;
  Sums memory[kTall][kWide] = {};
  float normalizer[kTall][4] = {};  // twice the same, as sums of a product come
  float left = 1;                   // of the memory at the beginning

  DEVICE explicit Keeper(int warp)
      : row(warp % Cut::kRowParts * kTall * 16), column(warp / Cut::kRowParts * kWide * 16),
        group(own_lane() / 4), pair(own_lane() % 4) {}

  template <class Chunk>
  DEVICE void add(const Chunk& chunk, const Decays<Cut::kTiles>& decays) {
    Sums added[kTall][kWide] = {};
    float rows[kTall][4] = {};
    float behind = 1;  // what the tiles behind one leave of it
#pragma unroll kAtOnce
    for (int tile = Cut::kTiles - 1; tile >= 0; tile--) {
      Side<Io> keys[kTall];
#pragma unroll
      for (int k = 0; k < kTall; k++) {
        keys[k] = chunk.keys().transposed_left(16 * tile, row + 16 * k);
        if (Decay) forget(keys[k], decays.leaving + 16 * tile, behind);
        if (Normalize) add_rows(rows[k], keys[k]);
      }
#pragma unroll
      for (int n = 0; n < kWide; n++) {
        const Side<Io> values = chunk.values().right(16 * tile, column + 16 * n);
#pragma unroll
        for (int k = 0; k < kTall; k++) multiply_add(added[k][n], keys[k], values);
      }
      if (Decay) behind *= decays.whole[tile];
    }
    left *= behind;
    keep(behind, added, rows);
  }
  DEVICE void keep(float left, const Sums (&added)[kTall][kWide],
                   const float (&rows)[kTall][4]) {
#pragma unroll
    for (int k = 0; k < kTall; k++) {
#pragma unroll
      for (int n = 0; n < kWide; n++) memory[k][n].keep(left, added[k][n]);
#pragma unroll
      for (int r = 0; r < 4; r++) normalizer[k][r] = left * normalizer[k][r] + rows[k][r];
    }
  }

  DEVICE void forget(Side<Io>& keys, const float* leaving, float behind) const {
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const float2 by = load_shared((const float2*)(leaving + 2 * pair + r / 2 * 8));
      const Pair<Io> both = keys.pair(r);
      keys.put(r, Pair<Io>::of(both.first() * (by.x * behind),
                               both.second() * (by.y * behind)));
    }
  }

  // How large it is, for `memory_unit`.
  DEVICE void measure(Shared<Cut>& shared) const {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 2 * kTall * kWide; i++)
      largest = max(largest, memory[i / 2 / kWide][i / 2 % kWide].largest(i % 2));
#pragma unroll
    for (int by = 16; by > 0; by /= 2)
      largest = max(largest, __shfl_xor_sync(kAllLanes, largest, by));
    if (own_lane() == 0) shared.largest[threadIdx.x / 32] = largest;
  }

  // To where readers find it, divided by a unit.
  DEVICE void publish(Matrix<Io, Cut::kFeatures, Cut::kColumns> to, float* total,
                      float unit) const {
    const float by[2] = {1.0f / unit, 1.0f / unit};
#pragma unroll
    for (int k = 0; k < kTall; k++) {
#pragma unroll
      for (int n = 0; n < kWide; n++) {
        Sums divided = memory[k][n];
        divided.scale(by);
        to.put(row + 16 * k, column + 16 * n, divided);
      }
      if (!Normalize || column > 0 || pair > 0) continue;
      store_shared(total + row + 16 * k + group, normalizer[k][0]);
      store_shared(total + row + 16 * k + group + 8, normalizer[k][2]);
    }
  }

  // From and to global memory, where rows of it have `values` columns.
  DEVICE void load(const float* from, const float* total, int features, int columns,
                   int values) {
    if (from != nullptr)
      visit(features, columns, [&](float& x, float& y, int k, int n) {
        const float2 both = *(const float2*)(from + i64(k) * values + n);
        x = both.x, y = both.y;
      });
    if (total != nullptr)
#pragma unroll
      for (int i = 0; i < 4 * kTall; i++) {
        const int k = row + i / 4 * 16 + group + i % 4 / 2 * 8;
        if (k < features) normalizer[i / 4][i % 4] = total[k];
      }
  }
  DEVICE void store(float* to, float* total, int features, int columns, int values) {
    if (to != nullptr)
      visit(features, columns, [&](float& x, float& y, int k, int n) {
        *(float2*)(to + i64(k) * values + n) = make_float2(x, y);
      });
    if (total != nullptr && column == 0 && pair == 0)
#pragma unroll
      for (int i = 0; i < 2 * kTall; i++) {
        const int k = row + i / 2 * 16 + group + i % 2 * 8;
        if (k < features) total[k] = normalizer[i / 2][i % 2 * 2];
      }
  }
  // Neighbours in a row, with the row and the column of the first.
  template <class Visit> DEVICE void visit(int features, int columns, Visit one) {
#pragma unroll
    for (int i = 0; i < 4 * kTall * kWide; i++) {
      const int block = i / 4, half = i / 2 % 2, down = i % 2;
      Sums& sums = memory[block / kWide][block % kWide];
      const int k = row + block / kWide * 16 + group + 8 * down;
      const int n = column + block % kWide * 16 + 8 * half + 2 * pair;
      if (k < features && n < columns)
        one(sums.entry(down, half, 0), sums.entry(down, half, 1), k, n);
    }
  }
};
