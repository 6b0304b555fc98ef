// Small kernels, each wrong in one way: the number of the fault is a parameter.
#define N 64

__global__ void unsynchronised(float* out, bool right) {
  __shared__ float tile[N];
  tile[threadIdx.x] = threadIdx.x;
  if (right) __syncthreads();
  out[threadIdx.x] = tile[(threadIdx.x + 1) % N];
}

__global__ void between_blocks(float* out, bool right) {
  if (threadIdx.x == 0) out[right ? blockIdx.x : 0] = blockIdx.x;
}

__global__ void beyond_array(float* out, bool right) { out[threadIdx.x + !right] = 1; }

__global__ void beyond_shared(float* out, bool right) {
  __shared__ float tile[N - 1], other[N];
  other[threadIdx.x] = 0;
  if (threadIdx.x < N - right) tile[threadIdx.x] = 1;
  out[threadIdx.x] = other[threadIdx.x];
}

__global__ void misaligned(float* out, bool right) {
  if (threadIdx.x == 0) *reinterpret_cast<float4*>(out + !right) = make_float4(1, 2, 3, 4);
}

__global__ void different_lanes(float* out, bool right) {
  float sum = 1;
  if (right || threadIdx.x % 2) sum = __shfl_xor_sync(0xffffffff, sum, 1);
  else __syncwarp();
  out[threadIdx.x] = sum;
}

void fault(int number, bool right, float* out) {
  switch (number) {
    case 0: unsynchronised<<<1, N>>>(out, right); break;
    case 1: between_blocks<<<3, N>>>(out, right); break;
    case 2: beyond_array<<<1, N>>>(out, right); break;
    case 3: beyond_shared<<<1, N>>>(out, right); break;
    case 4: misaligned<<<1, N>>>(out, right); break;
    case 5: different_lanes<<<1, N>>>(out, right); break;
  }
}
