// Scan over the segments of a head: the state before each segment, from the contribution A_s
// of each segment alone.
//
//     S_(s+1) = exp(sum of g in s) S_s + A_s        and z likewise
//
// In reverse, the gradient of the state after each segment: R_(s-1) = exp(..) R_s + A_s.
// A thread scans one entry of the state. Contributions are overwritten by states.
#include "common.cuh"

constexpr int kThreads = 256;

struct StatePassingParams {
  float *state, *normalizer;  // (B H, segments, K, V) and (B H, segments, K): A, then S
  const float* decay_total;   // (B H, segments)
  const float *initial_state, *initial_normalizer;  // (B H, K, V), (B H, K); null for zeros
  float *final_state, *final_normalizer;            // null if not needed
  i64 heads, segments, state_entries, normalizer_entries;  // entries of one head
  i64 reverse;
};

__global__ void __launch_bounds__(kThreads) state_passing(StatePassingParams params) {
  const i64 entries = params.state_entries + params.normalizer_entries;
  const i64 head = (i64(blockIdx.x) * kThreads + threadIdx.x) / entries;
  const i64 entry = (i64(blockIdx.x) * kThreads + threadIdx.x) % entries;
  if (head >= params.heads) return;
  const bool in_state = entry < params.state_entries;
  const i64 size = in_state ? params.state_entries : params.normalizer_entries;
  const i64 offset = in_state ? entry : entry - params.state_entries;
  const float* initial = in_state ? params.initial_state : params.initial_normalizer;
  float* last = in_state ? params.final_state : params.final_normalizer;
  float* states = in_state ? params.state : params.normalizer;
  float* state = states + head * params.segments * size + offset;
  const float* decay_total = params.decay_total + head * params.segments;

  float sum = initial == nullptr ? 0.0f : initial[head * size + offset];
  for (i64 i = 0; i < params.segments; i++) {
    const i64 segment = params.reverse ? params.segments - 1 - i : i;
    const float added = state[segment * size];
    state[segment * size] = sum;
    sum = decay_total[segment] * sum + added;
  }
  if (last != nullptr) last[head * size + offset] = sum;
}
