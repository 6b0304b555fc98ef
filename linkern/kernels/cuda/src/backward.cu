// Gradients of what is only added to the memory, in plain arithmetic: for every shape and
// dtype.
//
// The normalizer is one more column of the memory: of a value 1, and of a cotangent d. With
// P the pairs of a chunk as far as they are seen and left, S the memory before it and R the
// cotangent of that after it, e, l and w what is left of S for each query, of each key
// behind the chunk, and of S there, for the features Q and F, u the weights of the rows:
//
//     D  = dO / u  or  s dO        dQ = e D' S^T + A F        A = between * D' V'^T
//     D' = (D, d)                  dF = l V' R^T + A^T Q      d = -D . (e Q S + P V) / u
//     V' = (V, 1)                  dV = l F R + P^T D         R <- w R + (e Q)^T D'
//
// The gradient of a log-decay g_t is the sum of all M_ij with i >= t > j, where M_ij is the
// part of the result that i reads of j, P_ij (D' V'^T)_ij for two tokens: the memory before
// the chunk is a token before all others, and that after it one behind them.
//
// On the way there the memory is kept every kSegment chunks. A block then goes back through
// the tokens of a head: where it comes into a segment it walks up once more, and leaves the
// memory before each chunk. Nothing is subtracted, so that a decay may be zero. Beside all
// inputs and gradients once, that costs one more reading of keys and values, and K W
// numbers written and read every kSegment kChunk tokens: of rows of 64 float32 each, 1.36
// times the least. What is left inside a segment, kSegment K W numbers of a block, is soon
// read again, mostly from the second cache.
#include "place.cuh"

// The same sum for each of some lanes side by side.
template <int Lanes, class Real> DEVICE Real sum_of_lanes(Real x) {
  for (int by = Lanes / 2; by > 0; by /= 2) x += __shfl_xor_sync(0xffffffffu, x, by);
  return x;
}

// What a block pulls of a chunk: each thread has one pair of tokens, and a column of the
// rows of its warp.
template <class Io, class Real, int Map, bool Decay, bool Normalize>
struct Pull : Place<Io, Real, Map, Decay, Normalize> {
  using At = Place<Io, Real, Map, Decay, Normalize>;
  using At::of, At::tiles, At::thread, At::lane, At::warp, At::count;
  using At::features, At::values, At::width, At::has, At::entry, At::rows, At::outside;
  using At::between, At::entering, At::leaving;
  using At::load_queries, At::load_keys, At::load_values, At::load_cotangents;
  using At::load_memory;

  DEVICE void pull(const Real* memory) {
    __syncthreads();  // of the log-decays, and of all memories inside the segment
    if (Decay) {
      find_edges(tiles.decays, tiles.log_decay, thread);
      find_between(tiles.decays, tiles.log_decay, thread);
    }
    const int reader = thread / kChunk, written = thread % kChunk;
    pair(memory, reader, written);
    along_values(memory, reader, written);
    along_features(memory);
    if (Decay) pull_decays();
  }

  // P, and what the cotangents of rows are to be multiplied by.
  DEVICE void pair(const Real* memory, int reader, int written) {
    Real score = 0, weight = 0;
    for (int panel = 0; panel < features; panel += kPanel) {
      load_queries(panel);
      load_keys(panel);
      __syncthreads();  // of the panel, and of the decays
      for (int k = 0; k < kPanel; k++)
        score += tiles.query[reader][k] * tiles.key[written][k];
      if (Normalize)
        for (int k = written; k < kPanel && panel + k < features; k += kChunk)
          weight += tiles.query[reader][k] * memory[i64(panel + k) * width + values];
      __syncthreads();  // before the panel is overwritten
    }
    // What is not seen leaves no trace, even if it is infinite.
    const Real pair = written <= reader ? between(reader, written) * score : Real(0);
    tiles.pairs[reader][written] = pair;
    weight = sum_of_lanes<kChunk>(pair + entering(reader) * weight);
    if (written == 0) {
      const bool none = of.cotangent.at == nullptr || reader >= count;
      tiles.factor[reader] = none ? Real(0) : Normalize ? Real(1) / weight : of.scale;
      tiles.weight_cotangent[reader] = 0;
    }
    __syncthreads();  // of the factors
  }

  // dV, d and A: slices of columns, and for each of them all features.
  DEVICE void along_values(const Real* memory, int reader, int written) {
    Real paired = 0, share[kRows] = {};
    for (int slice = 0; slice < values; slice += kPanel) {
      Real read[kRows] = {}, found[kRows] = {};
      load_values(slice);
      load_cotangents(slice);
      for (int panel = 0; panel < features; panel += kPanel) {
        load_queries(panel);
        load_keys(panel);
        load_memory(tiles.memory, memory, panel, slice);
        load_memory(tiles.outside, outside(), panel, slice);
        __syncthreads();  // of the tiles
        for (int i = 0; i < kRows; i++)
          for (int k = 0; k < kPanel; k++) {
            read[i] += tiles.query[warp + i * kWarps][k] * tiles.memory[k][lane];
            found[i] += tiles.key[warp + i * kWarps][k] * tiles.outside[k][lane];
          }
        __syncthreads();  // before they are overwritten
      }
      for (int k = 0; k < kPanel; k++)
        paired += tiles.cotangent[reader][k] * tiles.value[written][k];
      for (int i = 0; i < kRows; i++) {
        const int row = warp + i * kWarps;
        read[i] *= entering(row);
        found[i] *= leaving(row);
        for (int j = 0; j <= row; j++)
          read[i] += tiles.pairs[row][j] * tiles.value[j][lane];
        for (int j = row; j < kChunk; j++)
          found[i] += tiles.pairs[j][row] * tiles.cotangent[j][lane];
        share[i] += tiles.cotangent[row][lane] * read[i];
        if (row < count && slice + lane < values)
          put(rows(of.value_gradient) + row * of.value_gradient.token + slice + lane,
              found[i]);
      }
      __syncthreads();  // before values and cotangents are overwritten
    }
    for (int i = 0; Normalize && i < kRows; i++) {
      const int row = warp + i * kWarps;
      const Real sum = sum_of_lanes<32>(share[i]);
      if (lane == 0) tiles.weight_cotangent[row] = -tiles.factor[row] * sum;
    }
    __syncthreads();  // of the cotangents of weights
    const Real cotangent = paired + tiles.weight_cotangent[reader];
    // Of these only pairs that are seen are ever read.
    tiles.pair_cotangent[reader][written] = between(reader, written) * cotangent;
    if (Decay)
      tiles.through[reader][written + 1] = tiles.pairs[reader][written] * cotangent;
  }

  // dQ, dF and R: panels of features, and for each of them all columns.
  DEVICE void along_features(const Real* memory) {
    Real entered[kRows] = {}, left[kRows] = {}, whole = 0;
    for (int panel = 0; panel < features; panel += kPanel) {
      Real query[kRows] = {}, key[kRows] = {};
      load_queries(panel);
      load_keys(panel);
      for (int slice = 0; slice < width; slice += kPanel) {
        load_values(slice);
        load_cotangents(slice);
        load_memory(tiles.memory, memory, panel, slice);
        load_memory(tiles.outside, outside(), panel, slice);
        __syncthreads();  // of the tiles
        for (int i = 0; i < kRows; i++)
          for (int x = 0; x < kPanel; x++) {
            query[i] += tiles.cotangent[warp + i * kWarps][x] * tiles.memory[lane][x];
            key[i] += tiles.value[warp + i * kWarps][x] * tiles.outside[lane][x];
          }
        whole += pass_back(panel, slice);
        __syncthreads();  // before they are overwritten
      }
      for (int i = 0; i < kRows; i++) {
        const int row = warp + i * kWarps;
        query[i] *= entering(row);
        key[i] *= leaving(row);
        entered[i] += query[i] * tiles.query[row][lane];
        left[i] += key[i] * tiles.key[row][lane];
        for (int j = 0; j <= row; j++)
          query[i] += tiles.pair_cotangent[row][j] * tiles.key[j][lane];
        for (int j = row; j < kChunk; j++)
          key[i] += tiles.pair_cotangent[j][row] * tiles.query[j][lane];
        if (row >= count || panel + lane >= features) continue;
        const i64 k = panel + lane;
        put(rows(of.query_gradient) + row * of.query_gradient.token + k,
            slope<Map>(tiles.query[row][lane]) * query[i]);
        put(rows(of.key_gradient) + row * of.key_gradient.token + k,
            slope<Map>(tiles.key[row][lane]) * key[i]);
      }
      __syncthreads();  // before the panel is overwritten
    }
    if (!Decay) return;
    for (int i = 0; i < kRows; i++) {
      const int row = warp + i * kWarps;
      entered[i] = sum_of_lanes<32>(entered[i]);
      left[i] = sum_of_lanes<32>(left[i]);
      if (lane == 0) tiles.through[row][0] = entered[i];
      if (lane == 0) tiles.through[kChunk][row + 1] = left[i];
    }
    whole = sum_of_lanes<32>(whole);
    if (lane == 0) tiles.partial[warp] = whole;
  }

  // Takes a tile of R through the chunk, and returns the thread's part of S . R.
  DEVICE Real pass_back(int panel, int slice) {
    Real product = 0;
    for (int k = warp; k < kPanel; k += kWarps) {
      Real sum = 0;
      for (int i = 0; i < kChunk; i++)
        sum += entering(i) * tiles.query[i][k] * tiles.cotangent[i][lane];
      product += tiles.memory[k][lane] * tiles.outside[k][lane];
      if (has(panel, k, slice))
        outside()[entry(panel, k, slice)] =
            entering(kChunk - 1) * tiles.outside[k][lane] + sum;
    }
    return product;
  }

  // The gradients of log-decays: sums over what each of them lies between.
  DEVICE void pull_decays() {
    __syncthreads();  // of all that goes through
    if (thread == 0) {
      Real sum = 0;
      for (int i = 0; i < kWarps; i++) sum += tiles.partial[i];
      tiles.through[kChunk][0] = entering(kChunk - 1) * sum;
    }
    __syncthreads();  // of the last of it
    if (thread < count) {
      Real sum = 0;
      for (int i = thread; i <= kChunk; i++)
        for (int j = 0; j <= thread; j++) sum += tiles.through[i][j];
      rows(of.log_decay_gradient)[thread * of.log_decay_gradient.token] = sum;
    }
  }
};

// A block for each tile of the memory of each head.
template <class Io, class Real, int Map, bool Decay, bool Normalize>
__global__ void __launch_bounds__(kThreads, 1) keep_memory(Backward<Io, Real> of) {
  SHARED_MEMORY(shared);
  Tiles<Real>& tiles = *reinterpret_cast<Tiles<Real>*>(shared);
  const int width = of.sizes.values + (Normalize ? 1 : 0);
  const int slices = (width + kPanel - 1) / kPanel;
  const int panels = (of.sizes.features + kPanel - 1) / kPanel;
  const int tile = int(blockIdx.x % (panels * slices));
  const i64 head = i64(blockIdx.x) / (panels * slices);
  Place<Io, Real, Map, Decay, Normalize> block{of, tiles, head};
  block.keep(tile / slices * kPanel, tile % slices * kPanel);
}

// A block for each head.
template <class Io, class Real, int Map, bool Decay, bool Normalize>
__global__ void __launch_bounds__(kThreads, 1) additive_backward(Backward<Io, Real> of) {
  SHARED_MEMORY(shared);
  Tiles<Real>& tiles = *reinterpret_cast<Tiles<Real>*>(shared);
  Pull<Io, Real, Map, Decay, Normalize> block{{of, tiles, i64(blockIdx.x)}};
  for (i64 segment = block.segments() - 1; segment >= 0; segment--) {
    const i64 first = segment * block.tokens_of_segment();
    const i64 rest = (of.sizes.tokens - first + kChunk - 1) / kChunk;
    const int chunks = int(rest < kSegment ? rest : kSegment);
    block.come_into(segment, chunks);
    for (int chunk = chunks - 1; chunk >= 0; chunk--) {
      block.go_to(first + i64(chunk) * kChunk);
      block.pull(block.inside(chunk));
    }
  }
}
