// Threads, barriers and operations of warps, for kernels that run on a CPU.
//
// One fiber for each CUDA thread, which a scheduler enters and leaves. All code that accesses
// memory of a kernel on behalf of one of its threads is in headers: it is compiled with the
// kernel, runs on the fiber of the thread, and is instrumented by ThreadSanitizer and
// AddressSanitizer. The scheduler, runtime.cpp, is not instrumented.
//
// Memory is ordered by the same operations as on a GPU: a launch, __syncthreads and
// __syncwarp. Shuffles and votes synchronize the lanes of a warp and order nothing.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(16) uint4 { unsigned x, y, z, w; };

namespace emulator {

typedef std::uint16_t u16;
typedef std::uint32_t u32;

constexpr int kWarp = 32;
constexpr u32 kWholeWarp = 0xffffffffu;

// Indices of a thread, and the shared memory of its block.
struct Thread {
  dim3 index, block, block_size, grid_size;
  unsigned char* shared = nullptr;
  unsigned lane = 0;
};
extern Thread* current;

// Ends the launch with an error: the kernel has undefined behaviour.
[[noreturn]] void fail(const char* what, int line);

// __syncthreads and __syncwarp: earlier writes are visible afterwards.
void meet_block(int line);
void meet_warp(int line, u32 mask = kWholeWarp);
// The lanes of a mask meet, and the last one calls `together` for all; `of_lanes` is null for
// lanes that the mask does not name. Orders nothing.
using Together = void (*)(void** of_lanes, int count);
void meet_lanes(Together together, void* of_lane, int line, u32 mask = kWholeWarp);
// Yields to other threads.
void give_way();

// Memory of a variable that all threads of a block share, the same for the same key.
void* shared_variable(const void* key, std::size_t bytes);
template <class Declaration, int Number, class T> T& shared_variable() {
  static const char key = 0;
  return *static_cast<T*>(shared_variable(&key, sizeof(T)));
}

// True if this launch has the fault of this number, of those compiled in.
bool planted(int fault);

// -- asynchronous copies: they finish when the schedule says, at the latest at the wait

struct Copy {
  void* to;
  const void* from;
  bool valid;
  int group;
};
enum class Landing { at_once, when_waited_for, at_random };
Landing landing();
bool coin();
Copy& begin_copy(void* to, const void* from, bool valid);
Copy* copies(int& count);
int current_group();
void end_group();
void forget_landed();

inline void land(Copy& copy) {
  if (copy.to == nullptr) return;
  *static_cast<uint4*>(copy.to) =
      copy.valid ? *static_cast<const uint4*>(copy.from) : uint4{0, 0, 0, 0};
  copy.to = nullptr;
}
inline void land_some() {
  if (landing() != Landing::at_random) return;
  int count;
  Copy* all = copies(count);
  for (int i = 0; i < count; i++)
    if (coin()) land(all[i]);
}
inline void syncthreads(int line) {
  land_some();
  meet_block(line);
}

// -- shuffles and votes; see lanes.cpp

struct Shuffled {
  std::uint64_t value, result;
  int from;
};
struct Vote {
  bool ballot;
  u32 result;
};
void shuffle_lanes(void**, int);
void count_votes(void**, int);

template <class T> T shuffled(T x, int from, int line, u32 mask = kWholeWarp) {
  static_assert(sizeof(T) <= 8, "a lane gives 8 bytes at most");
  Shuffled mine{0, 0, from};
  std::memcpy(&mine.value, &x, sizeof x);
  meet_lanes(shuffle_lanes, &mine, line, mask);
  std::memcpy(&x, &mine.result, sizeof x);
  return x;
}
inline u32 ballot(bool predicate, int line, u32 mask) {
  Vote mine{predicate, 0};
  meet_lanes(count_votes, &mine, line, mask);
  return mine.result;
}

// -- 16-bit numbers by their bits; see halves.cpp

struct Bf16 { u16 bits; };
struct F16 { u16 bits; };
float widened(Bf16);
float widened(F16);
u16 rounded(Bf16, float x);
u16 rounded(F16, float x);

// Records one lane's access to shared memory, to count bank conflicts.
void count_banks(const void* place, std::size_t bytes, int line);

}  // namespace emulator
