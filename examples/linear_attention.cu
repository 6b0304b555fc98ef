// Causal linear attention with elu(x) + 1 as a kernel of CUDA C++, judged without a GPU.
//
//     linkern verify --op linear_attention --dtype float32 --declare takes_state=true \
//         --timeout 60 --profile quick --command "linkern emulate \
//         examples/linear_attention.cu {inputs} {outputs} --entry linear_attention \
//         --grid B*H --block V+1 --shared 4*(16*K+K*(V+1)) \
//         --read query=query[B,H,T,K] --read key=key[B,H,T,K] --read value=value[B,H,T,V] \
//         --read initial_memory=initial_memory[B,H,K,V]? \
//         --read initial_normalizer=initial_normalizer[B,H,K]? \
//         --write output=output[B,H,T,V] --write memory=memory[B,H,K,V] \
//         --write normalizer=normalizer[B,H,K]"
//
// A block for each head and a thread for each column of the state; its last column is the
// normalizer, whose values are ones. Tokens come in tiles.

constexpr int kTile = 8;

__device__ float feature(float x) { return x > 0 ? x + 1 : expf(x); }

__global__ void linear_attention(const float* query, const float* key, const float* value,
                                 const float* initial_memory, const float* initial_normalizer,
                                 float* output, float* memory, float* normalizer, int T, int K,
                                 int V) {
  extern __shared__ float shared[];
  __shared__ float denominators[kTile];
  const int head = blockIdx.x, column = threadIdx.x, columns = V + 1;
  float* q = shared;             // kTile x K
  float* k = q + kTile * K;      // kTile x K
  float* state = k + kTile * K;  // K x columns, of which each thread keeps its own

  for (int i = 0; i < K; i++) {
    float first = 0;
    if (initial_memory != nullptr)
      first = column < V ? initial_memory[(head * K + i) * V + column]
                         : initial_normalizer[head * K + i];
    state[i * columns + column] = first;
  }
  for (int start = 0; start < T; start += kTile) {
    const int tokens = min(kTile, T - start);
    for (int i = column; i < tokens * K; i += columns) {
      q[i] = feature(query[(head * T + start) * K + i]);
      k[i] = feature(key[(head * T + start) * K + i]);
    }
    __syncthreads();
    float results[kTile];
    for (int t = 0; t < tokens; t++) {
      const float v = column < V ? value[(head * T + start + t) * V + column] : 1.0f;
      results[t] = 0;
      for (int i = 0; i < K; i++) {
        float& entry = state[i * columns + column];
        entry += k[t * K + i] * v;
        results[t] += q[t * K + i] * entry;
      }
      if (column == V) denominators[t] = results[t];
    }
    __syncthreads();
    for (int t = 0; t < tokens; t++)
      if (column < V)
        output[(head * T + start + t) * V + column] = results[t] / denominators[t];
  }
  for (int i = 0; i < K; i++) {
    const float last = state[i * columns + column];
    if (column < V) {
      memory[(head * K + i) * V + column] = last;
    } else {
      normalizer[head * K + i] = last;
    }
  }
}
