// Chunkwise forward of linear attention with scalar decay, without tensor cores: for every
// shape and dtype.
//
//     S_i = exp(g_i) S_(i-1) + k_i v_i^T        o_i = q_i^T S_i / q_i^T z_i
//     z_i = exp(g_i) z_(i-1) + k_i              or s q_i^T S_i
//
// A block of threads processes the tokens of one head for kColumns columns of its values, in
// chunks of kChunk tokens and panels of kPanel features. The state stays in global memory,
// where it is returned; each entry is read and written by the same thread.
#include "simt_panels.cuh"

constexpr int kColumns = kPanel, kThreads = 128;
constexpr int kWarps = kThreads / 32;

template <class Io, class Real> struct ChunkFwdSimtParams {
  Rows<const Io> query, key, value;
  GateRows log_decay;
  Rows<Io> output;
  const Real *initial_state, *initial_normalizer;  // (B H, K, V), (B H, K); null for zeros
  Real *final_state, *final_normalizer;
  u32* broken;  // rules that gates broke, for each warp; null if they were checked
  Sizes sizes;
  Real scale;
};

template <class Real> struct FwdSimtStorage {
  Real query[kChunk][kPanel + 1], key[kChunk][kPanel + 1], value[kChunk][kColumns];
  Real state[kPanel][kColumns];
  Real scores[kChunk][kChunk + 1];
  Real weights[kChunk], log_decay[kChunk];
  SimtDecays<Real> decays;
};

template <class Io, class Real, int Map, bool Decay, bool Normalize>
__global__ void __launch_bounds__(kThreads, 4)
    chunk_fwd_simt(ChunkFwdSimtParams<Io, Real> params) {
  SHARED_MEMORY(bytes);
  FwdSimtStorage<Real>& storage = *reinterpret_cast<FwdSimtStorage<Real>*>(bytes);
  // K entries behind the storage.
  Real* normalizer = reinterpret_cast<Real*>(bytes + sizeof(FwdSimtStorage<Real>));
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int features = params.sizes.features, values = params.sizes.values;
  const int slices = max(1, (values + kColumns - 1) / kColumns);
  const int slice = int(blockIdx.x % slices), column = slice * kColumns + lane;
  const i64 head = blockIdx.x / slices;
  const i64 in_batch = head / params.sizes.heads, in_head = head % params.sizes.heads;
  const Io* query = params.query.at_head(in_batch, in_head);
  const Io* key = params.key.at_head(in_batch, in_head);
  const Io* value = params.value.at_head(in_batch, in_head);
  const Gates<Io, Real> log_decay(params.log_decay, in_batch, in_head, 0);
  u32 broken = 0;
  Io* output = params.output.at_head(in_batch, in_head);
  const Real* initial_state = params.initial_state;
  if (initial_state != nullptr) initial_state += head * features * values;
  Real* state = params.final_state + head * features * values;

  if (Normalize)
    for (int k = thread; k < features; k += kThreads)
      normalizer[k] =
          params.initial_normalizer ? params.initial_normalizer[head * features + k] : Real(0);

  bool first = true;  // the state is still the initial one
  for (i64 start = 0; start < params.sizes.tokens || first; start += kChunk, first = false) {
    const i64 remaining = params.sizes.tokens - start;
    const int count = int(remaining < kChunk ? remaining : kChunk);
    load_tile<kThreads, IDENTITY>(storage.value, value + start * params.value.token_stride,
                                  params.value.token_stride, count, slice * kColumns, values,
                                  thread);
    if (Decay && thread < kChunk) {
      LoadedGate<Io, Real> gate;
      if (thread < count) gate.load(log_decay, start + thread, 0);
      storage.log_decay[thread] = gate.widened(log_decay.narrow());
      broken |= broken_by_log_decay(storage.log_decay[thread]);
    }
    __syncthreads();  // the log-decays are loaded
    if (Decay) {
      compute_boundary_decays(storage.decays, storage.log_decay, thread);
      compute_decay_mask(storage.decays, storage.log_decay, thread);
    }
    __syncthreads();  // the decays are complete; without features no panel waits for them

    // Entry i of thread t is the score of query t / kChunk + i kThreads / kChunk and key
    // t % kChunk, and token warp + i kWarps in the thread's column of the output.
    Real scores[kChunk * kChunk / kThreads] = {}, from_state[kChunk / kWarps] = {}, weight = 0;
    for (int panel = 0; panel < features; panel += kPanel) {
      load_tile<kThreads, Map>(storage.query, query + start * params.query.token_stride,
                               params.query.token_stride, count, panel, features, thread);
      load_tile<kThreads, Map>(storage.key, key + start * params.key.token_stride,
                               params.key.token_stride, count, panel, features, thread);
      for (int k = warp; k < kPanel; k += kWarps) {
        const i64 entry = i64(panel + k) * values + column;
        const Real* source = first ? initial_state : state;
        bool valid = panel + k < features && column < values && source != nullptr;
        storage.state[k][lane] = valid ? source[entry] : Real(0);
      }
      __syncthreads();  // the panel is loaded
      for (int i = 0; i < kChunk * kChunk / kThreads; i++) {
        int row = thread / kChunk + i * (kThreads / kChunk), other = thread % kChunk;
        for (int k = 0; k < kPanel; k++)
          scores[i] += storage.query[row][k] * storage.key[other][k];
      }
      for (int i = 0; i < kChunk / kWarps; i++)
        for (int k = 0; k < kPanel; k++)
          from_state[i] += storage.query[warp + i * kWarps][k] * storage.state[k][lane];
      if (Normalize && thread < kChunk)
        for (int k = 0; k < kPanel && panel + k < features; k++)
          weight += storage.query[thread][k] * normalizer[panel + k];
      const Real chunk_decay = !Decay ? Real(1) : storage.decays.from_start[kChunk - 1];
      for (int k = warp; k < kPanel; k += kWarps) {
        if (panel + k >= features || column >= values) continue;
        Real sum = 0;
        for (int i = 0; i < kChunk; i++) {
          Real to_end = !Decay ? Real(1) : storage.decays.to_end[i];
          sum += to_end * storage.key[i][k] * storage.value[i][lane];
        }
        state[i64(panel + k) * values + column] = chunk_decay * storage.state[k][lane] + sum;
      }
      Real added = 0;
      if (Normalize && thread < kPanel)
        for (int i = 0; i < kChunk; i++)
          added += (!Decay ? Real(1) : storage.decays.to_end[i]) * storage.key[i][thread];
      __syncthreads();  // the panel and the normalizer may be overwritten
      if (Normalize && thread < kPanel && panel + thread < features)
        normalizer[panel + thread] = chunk_decay * normalizer[panel + thread] + added;
    }

    for (int i = 0; i < kChunk * kChunk / kThreads; i++) {
      int row = thread / kChunk + i * (kThreads / kChunk), other = thread % kChunk;
      Real decay = !Decay ? Real(1) : storage.decays.decay_mask[row][other];
      // A selection and not a product: masked scores may be infinite.
      storage.scores[row][other] = other <= row ? decay * scores[i] : Real(0);
    }
    __syncthreads();  // the scores are complete
    if (Normalize && thread < kChunk) {
      Real from_start = !Decay ? Real(1) : storage.decays.from_start[thread];
      Real sum = from_start * weight;
      for (int other = 0; other <= thread; other++) sum += storage.scores[thread][other];
      storage.weights[thread] = sum;
    }
    __syncthreads();  // the weights are complete
    for (int i = 0; i < kChunk / kWarps; i++) {
      const int row = warp + i * kWarps;
      if (row >= count || column >= values) continue;
      Real sum = !Decay ? from_state[i] : storage.decays.from_start[row] * from_state[i];
      for (int other = 0; other <= row; other++)
        sum += storage.scores[row][other] * storage.value[other][lane];
      store_rounded(output + (start + row) * params.output.token_stride + column,
                    Normalize ? sum / storage.weights[row] : params.scale * sum);
    }
    __syncthreads();  // values and decays may be overwritten
  }
  if (Normalize && slice == 0)
    for (int k = thread; k < features; k += kThreads)
      params.final_normalizer[head * features + k] = normalizer[k];
  if (Decay) report_broken(params.broken, broken);
}
