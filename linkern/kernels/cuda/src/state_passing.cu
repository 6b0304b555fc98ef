// Scan over the segments of a head: the state before each segment, from the contribution A_s
// of each segment alone.
//
//     S_(s+1) = exp(sum of g in s) S_s + A_s        and z likewise
//
// In reverse, the gradient of the state after each segment: R_(s-1) = exp(..) R_s + A_s.
// Contributions are overwritten by states. A thread scans a vector of neighbouring entries,
// and loads what several segments contribute before it stores a state: a load that came
// after a store would wait for the memory once for each segment.
#include "common.cuh"

constexpr int kThreads = 128, kLoads = 4;

struct StatePassingParams {
  float *state, *normalizer;  // (B H, segments, K, V) and (B H, segments, K): A, then S
  const float* decay_total;   // (B H, segments)
  const float *initial_state, *initial_normalizer;  // (B H, K, V), (B H, K); null for zeros
  float *final_state, *final_normalizer;            // null if not needed
  i64 segments, state_entries, normalizer_entries;  // entries of one head
  i64 reverse, blocks;                              // of one head
};

template <int Width>
__global__ void __launch_bounds__(kThreads) state_passing(StatePassingParams params) {
  typedef Vector<float, Width> Entries;
  const i64 entries = params.state_entries + params.normalizer_entries;
  const int blocks = int(params.blocks);
  const i64 head = int(blockIdx.x) / blocks;
  const i64 entry = (i64(int(blockIdx.x) % blocks) * kThreads + threadIdx.x) * Width;
  if (entry >= entries) return;
  const bool in_state = entry < params.state_entries;
  const i64 size = in_state ? params.state_entries : params.normalizer_entries;
  const i64 offset = in_state ? entry : entry - params.state_entries;
  const float* initial = in_state ? params.initial_state : params.initial_normalizer;
  float* last = in_state ? params.final_state : params.final_normalizer;
  float* states = in_state ? params.state : params.normalizer;
  float* state = states + head * params.segments * size + offset;
  const float* decay_total = params.decay_total + head * params.segments;
  const i64 first = params.reverse ? params.segments - 1 : 0, step = params.reverse ? -1 : 1;

  Entries sum = {};
  if (initial != nullptr) sum = *(const Entries*)(initial + head * size + offset);
  for (i64 start = 0; start < params.segments; start += kLoads) {
    Entries added[kLoads];
    float decay[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; i++) {
      if (start + i >= params.segments) continue;
      const i64 segment = first + step * (start + i);
      added[i] = *(const Entries*)(state + segment * size);
      decay[i] = decay_total[segment];
    }
#pragma unroll
    for (int i = 0; i < kLoads; i++) {
      if (start + i >= params.segments) continue;
      *(Entries*)(state + (first + step * (start + i)) * size) = sum;
#pragma unroll
      for (int n = 0; n < Width; n++)
        sum.entries[n] = decay[i] * sum.entries[n] + added[i].entries[n];
    }
  }
  if (last != nullptr) *(Entries*)(last + head * size + offset) = sum;
}
