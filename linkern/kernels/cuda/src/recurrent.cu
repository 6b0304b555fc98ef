// The recurrence token by token, with the state in registers.
//
// Columns of the state are independent. A block of threads takes one head and some of its
// columns through all tokens: kLanes threads share the features of as many columns as 16
// bytes hold, and sum their partial products. The rows of the next kSpan tokens are loaded
// while those of the current span are used.
#include "lane_sums.cuh"
#include "recurrent.cuh"

constexpr int kThreads = 128, kLanes = 16, kSpan = 4;
template <class Real> constexpr int kColumns = kThreads / kLanes * kVectorSize<Real>;
// Blocks per multiprocessor, by the bytes of a column of the state: a thread then has 80,
// 128, 168 or 255 registers; with fewer it spills.
constexpr int resident_blocks(int bytes) {
  return bytes < 256 ? 6 : bytes < 512 ? 4 : bytes < 1024 ? 3 : 2;
}

// Rows of a span in shared memory, for all threads of a block.
template <class Real, int Features, int Decays> struct Span {
  Real query[kSpan][Features], key[kSpan][Features], erase[kSpan][Features];
  Real decay[kSpan][Decays], value[kSpan][kColumns<Real>], beta[kSpan];
};

// Rows of the next span in registers, distributed over all threads.
template <class T, int Width> struct Prefetch {
  static constexpr int kEntries = (kSpan * Width + kThreads - 1) / kThreads;
  T entries[kEntries];

  // Loads from channel `channel` on; zeros where the sequence or its channels end.
  DEVICE void load(const T* rows, i64 stride, int count, int channel, int channels) {
#pragma unroll
    for (int i = 0; i < kEntries; i++) {
      const int entry = i * kThreads + threadIdx.x;
      const int row = entry / Width, column = channel + entry % Width;
      const bool valid = row < count && column < channels;
      entries[i] = valid ? rows[row * stride + column] : T();
    }
  }
  template <int Map, class Real> DEVICE void store(Real (&target)[kSpan][Width]) const {
#pragma unroll
    for (int i = 0; i < kEntries; i++) {
      const int entry = i * kThreads + threadIdx.x;
      if (entry < kSpan * Width)
        target[entry / Width][entry % Width] = apply_map<Map>(Real(widen(entries[i])));
    }
  }
};

// The same for gates: a row has `Width` of them.
template <class Io, class Real, int Width> struct GatePrefetch {
  static constexpr int kEntries = (kSpan * Width + kThreads - 1) / kThreads;
  LoadedGate<Io, Real> entries[kEntries];

  DEVICE void load(const Gates<Io, Real>& gates, i64 start, int count, int channels) {
#pragma unroll
    for (int i = 0; i < kEntries; i++) {
      const int entry = i * kThreads + threadIdx.x;
      const int row = entry / Width, channel = entry % Width;
      const bool inside = row < count && channel < channels;
      entries[i] = LoadedGate<Io, Real>();
      if (inside) entries[i].load(gates, start + row, channel);
    }
  }
  // Passes each place in the span to `store`, and its gate.
  template <class Store> DEVICE void for_each(bool narrow, Store store) const {
#pragma unroll
    for (int i = 0; i < kEntries; i++) {
      const int entry = i * kThreads + threadIdx.x;
      if (entry < kSpan * Width)
        store(entry / Width, entry % Width, entries[i].widened(narrow));
    }
  }
};

// The part of the state that one thread holds in registers.
template <class Real, int Features> struct StateRegisters {
  static constexpr int kWidth = kVectorSize<Real>, kCount = Features / kLanes;
  static constexpr int kGroup = kCount < kWidth ? kCount : kWidth;  // contiguous features
  using Columns = Vector<Real, kWidth>;
  Real entries[kCount][kWidth];

  static DEVICE int feature_of(int i) {
    const int lane = threadIdx.x % kLanes;
    return (i / kGroup * kLanes + lane) * kGroup + i % kGroup;
  }
  // Loads the entries of a row that belong to the features of this thread.
  static DEVICE void load_row(Real (&own)[kCount], const Real (&row)[Features]) {
#pragma unroll
    for (int i = 0; i < kCount; i += kGroup) {
      auto group = *reinterpret_cast<const Vector<Real, kGroup>*>(row + feature_of(i));
#pragma unroll
      for (int j = 0; j < kGroup; j++) own[i + j] = group.entries[j];
    }
  }

  DEVICE void load(const Real* state, int column, const Sizes& sizes, bool vectors) {
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      const i64 offset = i64(feature_of(i)) * sizes.values + column;
      const bool valid = state != nullptr && feature_of(i) < sizes.features;
      Columns columns = {};
      if (vectors) {
        if (valid && column < sizes.values)
          columns = *reinterpret_cast<const Columns*>(state + offset);
      } else {
        for (int c = 0; c < kWidth; c++)
          if (valid && column + c < sizes.values) columns.entries[c] = state[offset + c];
      }
#pragma unroll
      for (int c = 0; c < kWidth; c++) entries[i][c] = columns.entries[c];
    }
  }
  DEVICE void store(Real* state, int column, const Sizes& sizes, bool vectors) const {
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      const i64 offset = i64(feature_of(i)) * sizes.values + column;
      if (feature_of(i) >= sizes.features) continue;
      Columns columns;
#pragma unroll
      for (int c = 0; c < kWidth; c++) columns.entries[c] = entries[i][c];
      if (vectors) {
        if (column < sizes.values) *reinterpret_cast<Columns*>(state + offset) = columns;
      } else {
        for (int c = 0; c < kWidth; c++)
          if (column + c < sizes.values) state[offset + c] = columns.entries[c];
      }
    }
  }

  DEVICE void decay(const Real (&row)[Features]) {
    Real factors[kCount];
    load_row(factors, row);
#pragma unroll
    for (int i = 0; i < kCount; i++)
#pragma unroll
      for (int c = 0; c < kWidth; c++) entries[i][c] *= factors[i];
  }
  DEVICE void decay(const Real (&row)[1]) {
#pragma unroll
    for (int i = 0; i < kCount; i++)
#pragma unroll
      for (int c = 0; c < kWidth; c++) entries[i][c] *= row[0];
  }
  // Adds this thread's part of the product of a row with the state.
  DEVICE void read(const Real (&row)[Features], Real* sums) const {
    Real weights[kCount];
    load_row(weights, row);
#pragma unroll
    for (int i = 0; i < kCount; i++)
#pragma unroll
      for (int c = 0; c < kWidth; c++) sums[c] += weights[i] * entries[i][c];
  }
  // Adds the outer product of a key and a value.
  template <bool Whole>
  DEVICE void write(const Real (&row)[Features], const Real (&value)[kWidth], int features) {
    Real weights[kCount];
    load_row(weights, row);
#pragma unroll
    for (int i = 0; i < kCount; i++)
#pragma unroll
      for (int c = 0; c < kWidth; c++)
        // Padding is skipped: zero times an infinite value is not zero.
        if (Whole || feature_of(i) < features) entries[i][c] += weights[i] * value[c];
  }
};

// Whole: there are exactly `Features` features.
template <class Io, class Real, int Features, int Decay, int Erase, int Read, bool Whole>
__global__ void __launch_bounds__(kThreads, resident_blocks(Features * sizeof(Real)))
    recurrent(RecurrentParams<Io, Real> params) {
  constexpr int kWidth = kVectorSize<Real>, kDecays = Decay == BY_FEATURE ? Features : 1;
  SHARED_MEMORY(bytes);
  using SpanRows = Span<Real, Features, kDecays>;
  SpanRows* spans = reinterpret_cast<SpanRows*>(bytes);  // two, used in turn
  const Sizes& sizes = params.sizes;
  const int slices = max(1, (sizes.values + kColumns<Real> - 1) / kColumns<Real>);
  const HeadRows<Io, Real, Decay, Erase> head(params, blockIdx.x / slices);
  const int lane = threadIdx.x % kLanes, own = threadIdx.x / kLanes * kWidth;
  const int first_column = int(blockIdx.x % slices) * kColumns<Real>;
  const int column = first_column + own;

  StateRegisters<Real, Features> state;
  state.load(head.initial_state, column, sizes, params.vectors);

  Prefetch<Io, Features> query, key, erase;
  Prefetch<Io, kColumns<Real>> value;
  GatePrefetch<Io, Real, kDecays> log_decay;
  GatePrefetch<Io, Real, 1> beta;
  const bool has_beta = head.beta.data != nullptr;
  u32 broken = 0;
  auto prefetch = [&](i64 start) {
    const i64 remaining = sizes.tokens - start;
    const int count = int(remaining < kSpan ? remaining : kSpan), features = sizes.features;
    query.load(head.query + start * params.query.token_stride, params.query.token_stride,
               count, 0, features);
    key.load(head.key + start * params.key.token_stride, params.key.token_stride, count, 0,
             features);
    value.load(head.value + start * params.value.token_stride, params.value.token_stride,
               count, first_column, sizes.values);
    if (Erase != NO_ERASE)
      erase.load(head.erase + start * params.erase.token_stride, params.erase.token_stride,
                 count, 0, features);
    if (Decay != NO_DECAY)
      log_decay.load(head.log_decay, start, count, Decay == BY_FEATURE ? features : 1);
    if (has_beta) beta.load(head.beta, start, count, 1);
  };

  prefetch(0);
  for (i64 start = 0; start < sizes.tokens; start += kSpan) {
    SpanRows& span = spans[start / kSpan % 2];
    query.template store<IDENTITY>(span.query);
    key.template store<IDENTITY>(span.key);
    value.template store<IDENTITY>(span.value);
    if (Erase != NO_ERASE) erase.template store<IDENTITY>(span.erase);
    if (Decay != NO_DECAY)
      log_decay.for_each(head.log_decay.narrow(), [&](int row, int channel, Real x) {
        broken |= broken_by_log_decay(x);
        span.decay[row][channel] = exp(x);
      });
    beta.for_each(head.beta.narrow(), [&](int row, int, Real x) {
      broken |= broken_by_beta(x);
      span.beta[row] = has_beta ? x : Real(1);
    });
    // One barrier is enough: the other span is overwritten only after the next barrier.
    __syncthreads();
    prefetch(start + kSpan);

    Real outputs[kSpan * kWidth] = {};
#pragma unroll
    for (int t = 0; t < kSpan; t++) {
      if (start + t >= sizes.tokens) break;
      Real erased[kWidth] = {};
      if (Read == READ_EARLY) state.read(span.query[t], outputs + t * kWidth);
      if (Erase == ERASE_EARLY) state.read(span.erase[t], erased);
      if (Decay != NO_DECAY) state.decay(span.decay[t]);
      if (Erase == ERASE) state.read(span.erase[t], erased);
      if (Erase != NO_ERASE) sum_over_lanes<kLanes>(erased);
      auto written = *reinterpret_cast<const Vector<Real, kWidth>*>(span.value[t] + own);
#pragma unroll
      for (int c = 0; c < kWidth; c++)
        written.entries[c] = span.beta[t] * (written.entries[c] - erased[c]);
      state.template write<Whole>(span.key[t], written.entries, sizes.features);
      if (Read == READ) state.read(span.query[t], outputs + t * kWidth);
    }
    const Real sum = reduce_scatter<kSpan * kWidth, kLanes / 2>(outputs);
    constexpr int kSharing = kLanes / (kSpan * kWidth);  // lanes that have the same sum
    const int number = lane / kSharing, t = number / kWidth, c = number % kWidth;
    if (lane % kSharing == 0 && start + t < sizes.tokens && column + c < sizes.values)
      store_rounded(head.output + (start + t) * params.output.token_stride + column + c,
                    params.scale * sum);
  }
  report_broken(params.broken, broken);
  state.store(head.state, column, sizes, params.vectors);
}
