// Chunkwise backward of linear attention with scalar decay, without tensor cores: for every
// shape and dtype.
//
// The normalizer is one more column of the state: of a value 1, and of an output gradient d.
// For a chunk let P be the masked and decayed scores, S the state before it, R the gradient
// of the state after it; e, l and w the decays from the start of the chunk to each query,
// from each key to the end of the chunk, and of the whole chunk; Q and F the features, and u
// the weights of the rows:
//
//     D  = dO / u  or  s dO        dQ = e D' S^T + A F        A = decay * D' V'^T
//     D' = (D, d)                  dF = l V' R^T + A^T Q      d = -D . (e Q S + P V) / u
//     V' = (V, 1)                  dV = l F R + P^T D         R <- w R + (e Q)^T D'
//
// The gradient of a log-decay g_t is the sum of all M_ij with i >= t > j, where M_ij is the
// share of the result that query i owes to key j, P_ij (D' V'^T)_ij for two tokens. The state
// before the chunk counts as a key before all tokens, the state after it as a query after all
// tokens.
//
// A first kernel stores a checkpoint every kSegmentChunks chunks. In the second, a block
// processes the segments of a head in reverse: it recomputes the chunk states of a segment
// from its checkpoint, then computes the gradients of its chunks. Nothing is subtracted, so a
// decay may be zero. Traffic: every input and gradient once, keys and values one more time,
// and K W numbers written and read per segment; with rows of 64 float32, 1.36 times the
// minimum. The chunk states of a segment are read back soon, mostly from L2.
#include "chunk_bwd_simt_block.cuh"

// The sum over groups of `Lanes` neighbouring lanes.
template <int Lanes, class Real> DEVICE Real lane_sum(Real x) {
  for (int distance = Lanes / 2; distance > 0; distance /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

// Gradients of a chunk. Each thread has one score, and one column of the rows of its warp.
template <class Io, class Real, int Map, bool Decay, bool Normalize>
struct SimtGrad : SimtBlock<Io, Real, Map, Decay, Normalize> {
  using Block = SimtBlock<Io, Real, Map, Decay, Normalize>;
  using Block::params, Block::storage, Block::thread, Block::lane, Block::warp, Block::count;
  using Block::features, Block::values, Block::width, Block::has, Block::entry, Block::rows;
  using Block::dstate, Block::decay_mask, Block::from_start, Block::to_end;
  using Block::load_queries, Block::load_keys, Block::load_values, Block::load_output_grads;
  using Block::load_state_tile;

  DEVICE void backward_chunk(const Real* state) {
    __syncthreads();  // the log-decays and all chunk states of the segment are stored
    if (Decay) {
      compute_boundary_decays(storage.decays, storage.log_decay, thread);
      compute_decay_mask(storage.decays, storage.log_decay, thread);
    }
    const int query = thread / kChunk, key = thread % kChunk;
    compute_scores(state, query, key);
    compute_dv(state, query, key);
    compute_dq_dk(state);
    if (Decay) compute_dg();
  }

  // P, and the factors of the output gradients.
  DEVICE void compute_scores(const Real* state, int query, int key) {
    Real score = 0, weight = 0;
    for (int panel = 0; panel < features; panel += kPanel) {
      load_queries(panel);
      load_keys(panel);
      __syncthreads();  // the panel is loaded, the decays are complete
      for (int k = 0; k < kPanel; k++) score += storage.query[query][k] * storage.key[key][k];
      if (Normalize)
        for (int k = key; k < kPanel && panel + k < features; k += kChunk)
          weight += storage.query[query][k] * state[i64(panel + k) * width + values];
      __syncthreads();  // the panel may be overwritten
    }
    // A selection and not a product: masked scores may be infinite.
    const Real masked = key <= query ? decay_mask(query, key) * score : Real(0);
    storage.scores[query][key] = masked;
    weight = lane_sum<kChunk>(masked + from_start(query) * weight);
    if (key == 0) {
      const bool none = params.output_grad.data == nullptr || query >= count;
      storage.factors[query] =
          none ? Real(0) : Normalize ? Real(1) / weight : params.scale;
      storage.weight_grads[query] = 0;
    }
    __syncthreads();  // the factors are complete
  }

  // dV, d and A: slices of columns, and for each of them all features.
  DEVICE void compute_dv(const Real* state, int query, int key) {
    Real score_grad = 0, product[kRows] = {};
    for (int slice = 0; slice < values; slice += kPanel) {
      Real output[kRows] = {}, value_grad[kRows] = {};
      load_values(slice);
      load_output_grads(slice);
      for (int panel = 0; panel < features; panel += kPanel) {
        load_queries(panel);
        load_keys(panel);
        load_state_tile(storage.state, state, panel, slice);
        load_state_tile(storage.dstate, dstate(), panel, slice);
        __syncthreads();  // the tiles are loaded
        for (int i = 0; i < kRows; i++)
          for (int k = 0; k < kPanel; k++) {
            output[i] += storage.query[warp + i * kWarps][k] * storage.state[k][lane];
            value_grad[i] += storage.key[warp + i * kWarps][k] * storage.dstate[k][lane];
          }
        __syncthreads();  // they may be overwritten
      }
      for (int k = 0; k < kPanel; k++)
        score_grad += storage.output_grad[query][k] * storage.value[key][k];
      for (int i = 0; i < kRows; i++) {
        const int row = warp + i * kWarps;
        output[i] *= from_start(row);
        value_grad[i] *= to_end(row);
        for (int j = 0; j <= row; j++)
          output[i] += storage.scores[row][j] * storage.value[j][lane];
        for (int j = row; j < kChunk; j++)
          value_grad[i] += storage.scores[j][row] * storage.output_grad[j][lane];
        product[i] += storage.output_grad[row][lane] * output[i];
        if (row < count && slice + lane < values)
          store_rounded(
              rows(params.value_grad) + row * params.value_grad.token_stride + slice + lane,
              value_grad[i]);
      }
      __syncthreads();  // values and output gradients may be overwritten
    }
    for (int i = 0; Normalize && i < kRows; i++) {
      const int row = warp + i * kWarps;
      const Real sum = lane_sum<32>(product[i]);
      if (lane == 0) storage.weight_grads[row] = -storage.factors[row] * sum;
    }
    __syncthreads();  // the gradients of the weights are complete
    const Real shifted = score_grad + storage.weight_grads[query];
    // Above the diagonal, neither is read.
    storage.score_grads[query][key] = decay_mask(query, key) * shifted;
    if (Decay) storage.shares[query][key + 1] = storage.scores[query][key] * shifted;
  }

  // dQ, dF and R: panels of features, and for each of them all columns.
  DEVICE void compute_dq_dk(const Real* state) {
    Real from_state[kRows] = {}, to_state[kRows] = {}, across = 0;
    for (int panel = 0; panel < features; panel += kPanel) {
      Real query_grad[kRows] = {}, key_grad[kRows] = {};
      load_queries(panel);
      load_keys(panel);
      for (int slice = 0; slice < width; slice += kPanel) {
        load_values(slice);
        load_output_grads(slice);
        load_state_tile(storage.state, state, panel, slice);
        load_state_tile(storage.dstate, dstate(), panel, slice);
        __syncthreads();  // the tiles are loaded
        for (int i = 0; i < kRows; i++)
          for (int x = 0; x < kPanel; x++) {
            query_grad[i] +=
                storage.output_grad[warp + i * kWarps][x] * storage.state[lane][x];
            key_grad[i] += storage.value[warp + i * kWarps][x] * storage.dstate[lane][x];
          }
        across += update_dstate(panel, slice);
        __syncthreads();  // they may be overwritten
      }
      for (int i = 0; i < kRows; i++) {
        const int row = warp + i * kWarps;
        query_grad[i] *= from_start(row);
        key_grad[i] *= to_end(row);
        from_state[i] += query_grad[i] * storage.query[row][lane];
        to_state[i] += key_grad[i] * storage.key[row][lane];
        for (int j = 0; j <= row; j++)
          query_grad[i] += storage.score_grads[row][j] * storage.key[j][lane];
        for (int j = row; j < kChunk; j++)
          key_grad[i] += storage.score_grads[j][row] * storage.query[j][lane];
        if (row >= count || panel + lane >= features) continue;
        const i64 k = panel + lane;
        store_rounded(rows(params.query_grad) + row * params.query_grad.token_stride + k,
                      map_derivative<Map>(storage.query[row][lane]) * query_grad[i]);
        store_rounded(rows(params.key_grad) + row * params.key_grad.token_stride + k,
                      map_derivative<Map>(storage.key[row][lane]) * key_grad[i]);
      }
      __syncthreads();  // the panel may be overwritten
    }
    if (!Decay) return;
    for (int i = 0; i < kRows; i++) {
      const int row = warp + i * kWarps;
      from_state[i] = lane_sum<32>(from_state[i]);
      to_state[i] = lane_sum<32>(to_state[i]);
      if (lane == 0) storage.shares[row][0] = from_state[i];
      if (lane == 0) storage.shares[kChunk][row + 1] = to_state[i];
    }
    across = lane_sum<32>(across);
    if (lane == 0) storage.partial[warp] = across;
  }

  // Updates a tile of R, and returns the thread's part of S . R before the update.
  DEVICE Real update_dstate(int panel, int slice) {
    Real product = 0;
    for (int k = warp; k < kPanel; k += kWarps) {
      Real sum = 0;
      for (int i = 0; i < kChunk; i++)
        sum += from_start(i) * storage.query[i][k] * storage.output_grad[i][lane];
      product += storage.state[k][lane] * storage.dstate[k][lane];
      if (has(panel, k, slice))
        dstate()[entry(panel, k, slice)] =
            from_start(kChunk - 1) * storage.dstate[k][lane] + sum;
    }
    return product;
  }

  // The gradients of the log-decays.
  DEVICE void compute_dg() {
    __syncthreads();  // the shares are complete but for one
    if (thread == 0) {
      Real sum = 0;
      for (int i = 0; i < kWarps; i++) sum += storage.partial[i];
      storage.shares[kChunk][0] = from_start(kChunk - 1) * sum;
    }
    __syncthreads();  // the last one is complete
    if (thread < count) {
      Real sum = 0;
      for (int i = thread; i <= kChunk; i++)
        for (int j = 0; j <= thread; j++) sum += storage.shares[i][j];
      rows(params.log_decay_grad)[thread * params.log_decay_grad.token_stride] = sum;
    }
  }
};

// A block of threads for each tile of the state of each head.
template <class Io, class Real, int Map, bool Decay, bool Normalize>
__global__ void __launch_bounds__(kThreads, 1)
    chunk_bwd_simt_checkpoints(ChunkBwdSimtParams<Io, Real> params) {
  SHARED_MEMORY(bytes);
  BwdSimtStorage<Real>& storage = *reinterpret_cast<BwdSimtStorage<Real>*>(bytes);
  const int width = params.sizes.values + (Normalize ? 1 : 0);
  const int slices = (width + kPanel - 1) / kPanel;
  const int panels = (params.sizes.features + kPanel - 1) / kPanel;
  const int tile = int(blockIdx.x % (panels * slices));
  const i64 head = i64(blockIdx.x) / (panels * slices);
  SimtBlock<Io, Real, Map, Decay, Normalize> block{params, storage, head};
  block.store_checkpoints(tile / slices * kPanel, tile % slices * kPanel);
}

// A block of threads for each head.
template <class Io, class Real, int Map, bool Decay, bool Normalize>
__global__ void __launch_bounds__(kThreads, 1)
    chunk_bwd_simt(ChunkBwdSimtParams<Io, Real> params) {
  SHARED_MEMORY(bytes);
  BwdSimtStorage<Real>& storage = *reinterpret_cast<BwdSimtStorage<Real>*>(bytes);
  SimtGrad<Io, Real, Map, Decay, Normalize> block{{params, storage, i64(blockIdx.x)}};
  for (i64 segment = block.segments() - 1; segment >= 0; segment--) {
    const i64 first = segment * block.segment_tokens();
    const i64 remaining = (params.sizes.tokens - first + kChunk - 1) / kChunk;
    const int chunks = int(remaining < kSegmentChunks ? remaining : kSegmentChunks);
    block.recompute_states(segment, chunks);
    for (int chunk = chunks - 1; chunk >= 0; chunk--) {
      block.set_chunk(first + i64(chunk) * kChunk);
      block.backward_chunk(block.chunk_state(chunk));
    }
  }
}
