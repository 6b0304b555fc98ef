// The memory before each segment of a head, from what each segment adds to none.
//
//     S_(s+1) = exp(sum of g in s) S_s + A_s        and z likewise
//
// Or backwards: the cotangent of the memory behind each, R_(s-1) = exp(..) R_s + A_s.
// A thread takes one entry of a state through all segments.
#include "common.cuh"

constexpr int kThreads = 256;

struct Carry {
  float *memory, *normalizer;  // (B H, segments, K, V) and (B H, segments, K): A, then S
  const float* left;           // (B H, segments): of what was before a segment, behind it
  const float *memory_before, *normalizer_before;  // (B H, K, V), (B H, K); null for zeros
  float *memory_after, *normalizer_after;          // null if not asked for
  i64 heads, segments, memory_entries, normalizer_entries;  // of one head
  i64 backwards;
};

__global__ void __launch_bounds__(kThreads) carry(Carry of) {
  const i64 entries = of.memory_entries + of.normalizer_entries;
  const i64 head = (i64(blockIdx.x) * kThreads + threadIdx.x) / entries;
  const i64 entry = (i64(blockIdx.x) * kThreads + threadIdx.x) % entries;
  if (head >= of.heads) return;
  const bool in_memory = entry < of.memory_entries;
  const i64 size = in_memory ? of.memory_entries : of.normalizer_entries;
  const i64 place = in_memory ? entry : entry - of.memory_entries;
  const float* before = in_memory ? of.memory_before : of.normalizer_before;
  float* after = in_memory ? of.memory_after : of.normalizer_after;
  float* states = in_memory ? of.memory : of.normalizer;
  float* state = states + head * of.segments * size + place;
  const float* left = of.left + head * of.segments;

  float sum = before == nullptr ? 0.0f : before[head * size + place];
  for (i64 i = 0; i < of.segments; i++) {
    const i64 segment = of.backwards ? of.segments - 1 - i : i;
    const float added = state[segment * size];
    state[segment * size] = sum;
    sum = left[segment] * sum + added;
  }
  if (after != nullptr) after[head * size + place] = sum;
}
