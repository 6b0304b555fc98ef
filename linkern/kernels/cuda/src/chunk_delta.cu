// Chunkwise forward of the (gated) delta rule, on tensor cores: recurrent.cuh with erases
// that are keys and one decay for each token, or none.
#include "delta_block.cuh"
#include "delta_columns.cuh"

template <class Shape, bool Decay>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    chunk_delta(RecurrentParams<typename Split<typename Shape::Io>::Stored, float> params) {
  SHARED_MEMORY(bytes);
  process_head<Shape, Decay, DeltaColumns<Shape, Decay>>(params, bytes);
}
