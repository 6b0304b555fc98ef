// What is only added to the memory, in plain arithmetic: for every shape and dtype.
//
//     S_i = exp(g_i) S_(i-1) + k_i v_i^T        o_i = q_i^T S_i / q_i^T z_i
//     z_i = exp(g_i) z_(i-1) + k_i              or s q_i^T S_i
//
// A block of threads takes one head and kColumns columns of its values through all tokens,
// kChunk of them at a time and kPanel features at a time. The memory itself lies where it
// is returned; each entry is read and written by the same thread.
#include "panels.cuh"

constexpr int kColumns = kPanel, kThreads = 128;
constexpr int kWarps = kThreads / 32;

template <class Io, class Real> struct Forward {
  Rows<const Io> query, key, value;
  Rows<const Real> log_decay;
  Rows<Io> output;
  const Real *memory_before, *normalizer_before;  // (B H, K, V), (B H, K); null for zeros
  Real *memory, *normalizer;
  Sizes sizes;
  Real scale;
};

template <class Real> struct Tiles {
  Real query[kChunk][kPanel + 1], key[kChunk][kPanel + 1], value[kChunk][kColumns];
  Real memory[kPanel][kColumns];
  Real pairs[kChunk][kChunk + 1];
  Real weights[kChunk], log_decay[kChunk];
  Decays<Real> decays;
};

template <class Io, class Real, int Map, bool Decay, bool Normalize>
__global__ void __launch_bounds__(kThreads, 4) additive_forward(Forward<Io, Real> of) {
  SHARED_MEMORY(shared);
  Tiles<Real>& tiles = *reinterpret_cast<Tiles<Real>*>(shared);
  Real* normalizer = reinterpret_cast<Real*>(shared + sizeof(Tiles<Real>));  // K of them
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int features = of.sizes.features, values = of.sizes.values;
  const int slices = max(1, (values + kColumns - 1) / kColumns);
  const int slice = int(blockIdx.x % slices), column = slice * kColumns + lane;
  const i64 head = blockIdx.x / slices;
  const i64 in_batch = head / of.sizes.heads, in_head = head % of.sizes.heads;
  const Io* query = of.query.of(in_batch, in_head);
  const Io* key = of.key.of(in_batch, in_head);
  const Io* value = of.value.of(in_batch, in_head);
  const Real* log_decay = !Decay ? nullptr : of.log_decay.of(in_batch, in_head);
  Io* output = of.output.of(in_batch, in_head);
  const Real* memory_before = of.memory_before;
  if (memory_before != nullptr) memory_before += head * features * values;
  Real* memory = of.memory + head * features * values;

  if (Normalize)
    for (int k = thread; k < features; k += kThreads)
      normalizer[k] = of.normalizer_before ? of.normalizer_before[head * features + k] : Real(0);

  bool first = true;  // whether the memory is still where it came from
  for (i64 start = 0; start < of.sizes.tokens || first; start += kChunk, first = false) {
    const i64 rest = of.sizes.tokens - start;
    const int count = int(rest < kChunk ? rest : kChunk);
    load_tile<kThreads, IDENTITY>(tiles.value, value + start * of.value.token, of.value.token,
                                    count, slice * kColumns, values, thread);
    if (Decay && thread < kChunk)
      tiles.log_decay[thread] =
          thread < count ? log_decay[(start + thread) * of.log_decay.token] : Real(0);
    __syncthreads();  // of the log-decays
    if (Decay) {
      find_edges(tiles.decays, tiles.log_decay, thread);
      find_between(tiles.decays, tiles.log_decay, thread);
    }
    __syncthreads();  // of the decays: without features there is no panel to wait for

    // Entry i of thread t is pair (row t / kChunk + i kThreads / kChunk, t % kChunk), and
    // token warp + i kWarps in the thread's column of the output.
    Real scores[kChunk * kChunk / kThreads] = {}, found[kChunk / kWarps] = {}, weight = 0;
    for (int panel = 0; panel < features; panel += kPanel) {
      load_tile<kThreads, Map>(tiles.query, query + start * of.query.token, of.query.token,
                               count, panel, features, thread);
      load_tile<kThreads, Map>(tiles.key, key + start * of.key.token, of.key.token, count,
                               panel, features, thread);
      for (int k = warp; k < kPanel; k += kWarps) {
        const i64 entry = i64(panel + k) * values + column;
        const Real* from = first ? memory_before : memory;
        bool there = panel + k < features && column < values && from != nullptr;
        tiles.memory[k][lane] = there ? from[entry] : Real(0);
      }
      __syncthreads();  // of the panel
      for (int i = 0; i < kChunk * kChunk / kThreads; i++) {
        int reader = thread / kChunk + i * (kThreads / kChunk), written = thread % kChunk;
        for (int k = 0; k < kPanel; k++)
          scores[i] += tiles.query[reader][k] * tiles.key[written][k];
      }
      for (int i = 0; i < kChunk / kWarps; i++)
        for (int k = 0; k < kPanel; k++)
          found[i] += tiles.query[warp + i * kWarps][k] * tiles.memory[k][lane];
      if (Normalize && thread < kChunk)
        for (int k = 0; k < kPanel && panel + k < features; k++)
          weight += tiles.query[thread][k] * normalizer[panel + k];
      const Real whole = !Decay ? Real(1) : tiles.decays.entering[kChunk - 1];
      for (int k = warp; k < kPanel; k += kWarps) {
        if (panel + k >= features || column >= values) continue;
        Real sum = 0;
        for (int i = 0; i < kChunk; i++) {
          Real left = !Decay ? Real(1) : tiles.decays.leaving[i];
          sum += left * tiles.key[i][k] * tiles.value[i][lane];
        }
        memory[i64(panel + k) * values + column] = whole * tiles.memory[k][lane] + sum;
      }
      Real added = 0;
      if (Normalize && thread < kPanel)
        for (int i = 0; i < kChunk; i++)
          added += (!Decay ? Real(1) : tiles.decays.leaving[i]) * tiles.key[i][thread];
      __syncthreads();  // before the panel and the normalizer are overwritten
      if (Normalize && thread < kPanel && panel + thread < features)
        normalizer[panel + thread] = whole * normalizer[panel + thread] + added;
    }

    for (int i = 0; i < kChunk * kChunk / kThreads; i++) {
      int reader = thread / kChunk + i * (kThreads / kChunk), written = thread % kChunk;
      Real left = !Decay ? Real(1) : tiles.decays.between[reader][written];
      // What is not seen leaves no trace, even if it is infinite.
      tiles.pairs[reader][written] = written <= reader ? left * scores[i] : Real(0);
    }
    __syncthreads();  // of the pairs
    if (Normalize && thread < kChunk) {
      Real entering = !Decay ? Real(1) : tiles.decays.entering[thread];
      Real sum = entering * weight;
      for (int written = 0; written <= thread; written++) sum += tiles.pairs[thread][written];
      tiles.weights[thread] = sum;
    }
    __syncthreads();  // of the weights
    for (int i = 0; i < kChunk / kWarps; i++) {
      const int row = warp + i * kWarps;
      if (row >= count || column >= values) continue;
      Real sum = !Decay ? found[i] : tiles.decays.entering[row] * found[i];
      for (int written = 0; written <= row; written++)
        sum += tiles.pairs[row][written] * tiles.value[written][lane];
      put(output + (start + row) * of.output.token + column,
          Normalize ? sum / tiles.weights[row] : of.scale * sum);
    }
    __syncthreads();  // before values and decays are overwritten
  }
  if (Normalize && slice == 0)
    for (int k = thread; k < features; k += kThreads)
      of.normalizer[head * features + k] = normalizer[k];
}
