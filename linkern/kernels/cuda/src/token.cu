// The recurrence token by token, its memory in registers.
//
// Columns of a memory do not know each other. A block of threads takes one head and some of
// its columns through all tokens: kLanes threads share the features of as many columns as
// 16 bytes hold, and add up what each of them finds. Rows of the next kSpan tokens are on
// their way while the present ones are computed with.
#include "token.cuh"

constexpr int kThreads = 128, kLanes = 16, kSpan = 4;
template <class Real> constexpr int kWide = 16 / int(sizeof(Real));  // numbers in 16 bytes
template <class Real> constexpr int kColumns = kThreads / kLanes * kWide<Real>;
// Blocks of a multiprocessor for which a thread has 80, 128, 168 or 255 registers, by the
// bytes of a row: with fewer registers than that, some would be spilled.
constexpr int resident(int bytes) {
  return bytes < 256 ? 6 : bytes < 512 ? 4 : bytes < 1024 ? 3 : 2;
}

// Numbers that are loaded and stored at once.
template <class Real, int Count> struct __align__(sizeof(Real) * Count) Together {
  Real at[Count];
};

// Rows of a span as they are computed with, for all threads of a block.
template <class Real, int Features, int Decays> struct Span {
  Real query[kSpan][Features], key[kSpan][Features], erase[kSpan][Features];
  Real decay[kSpan][Decays], value[kSpan][kColumns<Real>];
};

// Rows of a span on their way there, in registers of all threads.
template <class T, int Width> struct Carried {
  static constexpr int kEach = (kSpan * Width + kThreads - 1) / kThreads;
  T entries[kEach];

  // From channel `channel` on; zeros where the sequence or its channels end.
  DEVICE void load(const T* rows, i64 stride, int count, int channel, int channels) {
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      const int entry = i * kThreads + threadIdx.x;
      const int row = entry / Width, column = channel + entry % Width;
      const bool there = row < count && column < channels;
      entries[i] = there ? rows[row * stride + column] : T();
    }
  }
  template <int Map, class Real> DEVICE void store(Real (&to)[kSpan][Width]) const {
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      const int entry = i * kThreads + threadIdx.x;
      if (entry < kSpan * Width)
        to[entry / Width][entry % Width] = feature<Map>(Real(wide(entries[i])));
    }
  }
};

// What one thread holds of the memory.
template <class Real, int Features> struct Held {
  static constexpr int kWidth = kWide<Real>, kCount = Features / kLanes;
  static constexpr int kSide = kCount < kWidth ? kCount : kWidth;  // features side by side
  using Columns = Together<Real, kWidth>;
  Real of[kCount][kWidth];

  static DEVICE int feature_of(int i) {
    const int lane = threadIdx.x % kLanes;
    return (i / kSide * kLanes + lane) * kSide + i % kSide;
  }
  // The entries of a row that belong to the features of this thread.
  static DEVICE void take(Real (&own)[kCount], const Real (&row)[Features]) {
#pragma unroll
    for (int i = 0; i < kCount; i += kSide) {
      auto found = *reinterpret_cast<const Together<Real, kSide>*>(row + feature_of(i));
#pragma unroll
      for (int j = 0; j < kSide; j++) own[i + j] = found.at[j];
    }
  }

  DEVICE void load(const Real* memory, int column, const Sizes& sizes, bool vectors) {
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      const i64 place = i64(feature_of(i)) * sizes.values + column;
      const bool there = memory != nullptr && feature_of(i) < sizes.features;
      Columns found = {};
      if (vectors) {
        if (there && column < sizes.values)
          found = *reinterpret_cast<const Columns*>(memory + place);
      } else {
        for (int c = 0; c < kWidth; c++)
          if (there && column + c < sizes.values) found.at[c] = memory[place + c];
      }
#pragma unroll
      for (int c = 0; c < kWidth; c++) of[i][c] = found.at[c];
    }
  }
  DEVICE void store(Real* memory, int column, const Sizes& sizes, bool vectors) const {
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      const i64 place = i64(feature_of(i)) * sizes.values + column;
      if (feature_of(i) >= sizes.features) continue;
      Columns given;
#pragma unroll
      for (int c = 0; c < kWidth; c++) given.at[c] = of[i][c];
      if (vectors) {
        if (column < sizes.values) *reinterpret_cast<Columns*>(memory + place) = given;
      } else {
        for (int c = 0; c < kWidth; c++)
          if (column + c < sizes.values) memory[place + c] = given.at[c];
      }
    }
  }

  DEVICE void decay(const Real (&row)[Features]) {
    Real left[kCount];
    take(left, row);
#pragma unroll
    for (int i = 0; i < kCount; i++)
#pragma unroll
      for (int c = 0; c < kWidth; c++) of[i][c] *= left[i];
  }
  DEVICE void decay(const Real (&row)[1]) {
#pragma unroll
    for (int i = 0; i < kCount; i++)
#pragma unroll
      for (int c = 0; c < kWidth; c++) of[i][c] *= row[0];
  }
  // This thread's part of the product of a row with the memory.
  DEVICE void read(const Real (&row)[Features], Real* found) const {
    Real weights[kCount];
    take(weights, row);
#pragma unroll
    for (int i = 0; i < kCount; i++)
#pragma unroll
      for (int c = 0; c < kWidth; c++) found[c] += weights[i] * of[i][c];
  }
  template <bool Whole>
  DEVICE void write(const Real (&row)[Features], const Real (&value)[kWidth], int features) {
    Real weights[kCount];
    take(weights, row);
#pragma unroll
    for (int i = 0; i < kCount; i++)
#pragma unroll
      for (int c = 0; c < kWidth; c++)
        // Zero times infinity is no zero: what is no feature stays empty.
        if (Whole || feature_of(i) < features) of[i][c] += weights[i] * value[c];
  }
};

// The sum of each number over the lanes that share a column, in all of them.
template <class Real, int Count> DEVICE void sum_over_lanes(Real (&numbers)[Count]) {
#pragma unroll
  for (int apart = kLanes / 2; apart > 0; apart /= 2)
#pragma unroll
    for (int i = 0; i < Count; i++) numbers[i] += __shfl_xor_sync(~0u, numbers[i], apart);
}

// The same, but a lane ends with one of the sums: number lane / (kLanes / Count). Each of
// two lanes gives away the half of the numbers that the other keeps.
template <int Count, int Apart = kLanes / 2, class Real> DEVICE Real sum_of_lane(Real* numbers) {
  if constexpr (Apart == 0) {
    return numbers[0];
  } else if constexpr (Count == 1) {
    numbers[0] += __shfl_xor_sync(~0u, numbers[0], Apart);
    return sum_of_lane<1, Apart / 2>(numbers);
  } else {
    const bool upper = threadIdx.x & Apart;
#pragma unroll
    for (int i = 0; i < Count / 2; i++) {
      const Real given = upper ? numbers[i] : numbers[i + Count / 2];
      const Real kept = upper ? numbers[i + Count / 2] : numbers[i];
      numbers[i] = kept + __shfl_xor_sync(~0u, given, Apart);
    }
    return sum_of_lane<Count / 2, Apart / 2>(numbers);
  }
}

template <class Io, class Real, int Features, int DecayBy, int Erased, int ReadWhen, bool Whole>
__global__ void __launch_bounds__(kThreads, resident(Features * sizeof(Real)))
token_by_token(Terms<Io, Real> of) {
  constexpr int kWidth = kWide<Real>, kDecays = DecayBy == BY_FEATURE ? Features : 1;
  SHARED_MEMORY(shared);
  using Staged = Span<Real, Features, kDecays>;
  Staged* spans = reinterpret_cast<Staged*>(shared);  // two of them, in turn
  const Sizes& sizes = of.sizes;
  const int slices = max(1, (sizes.values + kColumns<Real> - 1) / kColumns<Real>);
  const Head<Io, Real, DecayBy, Erased> head(of, blockIdx.x / slices);
  const int lane = threadIdx.x % kLanes, own = threadIdx.x / kLanes * kWidth;
  const int first_column = int(blockIdx.x % slices) * kColumns<Real>;
  const int column = first_column + own;

  Held<Real, Features> memory;
  memory.load(head.memory_before, column, sizes, of.vectors);

  Carried<Io, Features> query, key, erase;
  Carried<Io, kColumns<Real>> value;
  Carried<Real, kDecays> log_decay;
  auto fetch = [&](i64 start) {
    const i64 rest = sizes.tokens - start;
    const int count = int(rest < kSpan ? rest : kSpan), features = sizes.features;
    query.load(head.query + start * of.query.token, of.query.token, count, 0, features);
    key.load(head.key + start * of.key.token, of.key.token, count, 0, features);
    value.load(head.value + start * of.value.token, of.value.token, count, first_column,
               sizes.values);
    if (Erased != NO_ERASE)
      erase.load(head.erase + start * of.erase.token, of.erase.token, count, 0, features);
    if (DecayBy != NO_DECAY)
      log_decay.load(head.log_decay + start * of.log_decay.token, of.log_decay.token, count, 0,
                     DecayBy == BY_FEATURE ? features : 1);
  };

  fetch(0);
  for (i64 start = 0; start < sizes.tokens; start += kSpan) {
    Staged& span = spans[start / kSpan % 2];
    query.template store<IDENTITY>(span.query);
    key.template store<IDENTITY>(span.key);
    value.template store<IDENTITY>(span.value);
    if (Erased != NO_ERASE) erase.template store<IDENTITY>(span.erase);
    if (DecayBy != NO_DECAY) log_decay.template store<EXP>(span.decay);
    // Of this span; the other one is not overwritten before all have come here again.
    __syncthreads();
    fetch(start + kSpan);

    Real found[kSpan * kWidth] = {};
#pragma unroll
    for (int t = 0; t < kSpan; t++) {
      if (start + t >= sizes.tokens) break;
      Real erased[kWidth] = {};
      if (ReadWhen == READ_EARLY) memory.read(span.query[t], found + t * kWidth);
      if (Erased == ERASE_EARLY) memory.read(span.erase[t], erased);
      if (DecayBy != NO_DECAY) memory.decay(span.decay[t]);
      if (Erased == ERASE) memory.read(span.erase[t], erased);
      if (Erased != NO_ERASE) sum_over_lanes(erased);
      auto written = *reinterpret_cast<const Together<Real, kWidth>*>(span.value[t] + own);
#pragma unroll
      for (int c = 0; c < kWidth; c++) written.at[c] -= erased[c];
      memory.template write<Whole>(span.key[t], written.at, sizes.features);
      if (ReadWhen == READ) memory.read(span.query[t], found + t * kWidth);
    }
    const Real sum = sum_of_lane<kSpan * kWidth>(found);
    constexpr int kSharing = kLanes / (kSpan * kWidth);  // lanes that have the same sum
    const int number = lane / kSharing, t = number / kWidth, c = number % kWidth;
    if (lane % kSharing == 0 && start + t < sizes.tokens && column + c < sizes.values)
      put(head.output + (start + t) * of.output.token + column + c, sum);
  }
  memory.store(head.memory, column, sizes, of.vectors);
}
