// What each wrapper of device.cuh does with numbers that are known: a kernel for each kind.
//
// One warp to a block; each lane has its own entries of what goes in and of what comes out.
#include "device.cuh"

constexpr int kLanes = 32;

struct Words {
  const u32* in;
  u32* out;
};

// Numbers of 16 bits, two to a word, become two of 32 bits.
template <class T> __global__ void widens(Words of) {
  const i64 lane = i64(blockIdx.x) * kLanes + threadIdx.x;
  float* out = reinterpret_cast<float*>(of.out) + 2 * lane;
  out[0] = low(T(), of.in[lane]);
  out[1] = high(T(), of.in[lane]);
}

// And back.
template <class T> __global__ void narrows(Words of) {
  const i64 lane = i64(blockIdx.x) * kLanes + threadIdx.x;
  const float* in = reinterpret_cast<const float*>(of.in) + 2 * lane;
  of.out[lane] = pack(T(), in[0], in[1]);
}

// Two groups of 16 bytes for each lane, of which every third is zeros instead; the first
// is looked at while the second may still be under way.
__global__ void copies(Words of) {
  SHARED_MEMORY(shared);
  const int lane = threadIdx.x;
  const SharedBase base = shared_base(shared);
  for (int group = 0; group < 2; group++) {
    const int place = group * kLanes + lane;
    const bool valid = place % 3 != 0;
    copy_async(base, 16 * place, valid ? of.in + 4 * place : nullptr, valid);
    commit_copies();
  }
  const u32* words = reinterpret_cast<const u32*>(shared);
  wait_for_copies<1>();
  for (int i = 4 * lane; i < 4 * lane + 4; i++) of.out[i] = load_shared(words + i);
  wait_for_copies<0>();
  for (int i = 4 * (kLanes + lane); i < 4 * (kLanes + lane) + 4; i++)
    of.out[i] = load_shared(words + i);
}

// Four matrices of 8 rows of 16 bytes, as fragments: as they lie, and transposed.
template <bool Transposed> __global__ void spreads(Words of) {
  SHARED_MEMORY(shared);
  const int lane = threadIdx.x;
  u32* words = reinterpret_cast<u32*>(shared);
  for (int i = 4 * lane; i < 4 * lane + 4; i++) store_shared(words + i, of.in[i]);
  __syncwarp();
  u32 found[4];
  if (Transposed) {
    load_matrices_transposed(found, shared_base(shared), 16 * lane);
  } else {
    load_matrices(found, shared_base(shared), 16 * lane);
  }
  for (int i = 0; i < 4; i++) of.out[4 * lane + i] = found[i];
}

// The sum of a product: of each lane four words of a, two of b, and four sums before.
template <class T> __global__ void multiplies(Words of) {
  const int lane = threadIdx.x;
  const u32* in = of.in + 10 * lane;
  const float* before = reinterpret_cast<const float*>(in + 6);
  u32 a[4] = {in[0], in[1], in[2], in[3]};
  float sum[4] = {before[0], before[1], before[2], before[3]};
  multiply_add(T(), sum, a, in[4], in[5]);
  for (int i = 0; i < 4; i++) reinterpret_cast<float*>(of.out)[4 * lane + i] = sum[i];
}
