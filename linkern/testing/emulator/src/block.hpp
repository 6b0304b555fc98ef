// Blocks, warps and threads as the scheduler sees them.
#pragma once
#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "fiber.hpp"
#include "runtime.hpp"
#include "threads.hpp"

namespace emulator {

// Most threads of a block on any GPU, and bytes of its static and of all shared memory.
constexpr int kMostThreads = 1024;
constexpr std::size_t kMostStatic = 48 << 10, kMostShared = 227 << 10;
// A variable begins at a multiple of this, behind at least as many bytes that are nobody's.
constexpr std::size_t kBetween = 128;
constexpr std::size_t kArena = 2 * kMostStatic, kMostVariables = kArena / (2 * kBetween);
// Masks of lanes of one warp that can meet at the same time.
constexpr int kMasks = 16;

enum class State { runs, waits_for_block, waits_for_warp, done };

struct Block;

// One CUDA thread.
struct Running : Thread {
  std::unique_ptr<Fiber> fiber;
  State state = State::runs;
  bool gave_way = false;
  int number = 0, line = 0, group = 0, barriers = 0;
  Block* of = nullptr;
  std::vector<Copy> copies;
  std::vector<Access> accesses;  // of shared memory, since its warp last met
};

// Two synchronization variables of a barrier, used in turn. With one, a thread that leaves a
// barrier late would also be ordered after writes before the next barrier.
struct Order {
  char of[2] = {};
  char* at(int barrier) { return &of[barrier % 2]; }
};

// Lanes of one mask that meet again and again.
struct Meeting {
  u32 mask = 0;
  int arrived = 0, number = 0;
  Together together = nullptr;
  void* of_lanes[kWarp] = {};
  Order order;
};

struct Warp {
  int first = 0, size = 0;
  u32 alive = 0;  // lanes that have not ended
  std::array<Meeting, kMasks> meetings;

  // The meeting of a mask; null if others take up all places.
  Meeting* meeting(u32 mask) {
    Meeting* idle = nullptr;
    for (Meeting& one : meetings) {
      if (one.mask == mask) return &one;
      if (idle == nullptr && one.arrived == 0) idle = &one;
    }
    if (idle != nullptr) idle->mask = mask;
    return idle;
  }
};

// A variable of the arena of a block.
struct Variable {
  const void* key;
  unsigned char* place;
};

struct Block {
  std::vector<std::unique_ptr<Running>> threads;
  std::vector<Warp> warps;
  std::vector<int> order;  // of threads, or of warps
  unsigned char *shared = nullptr, *arena = nullptr;
  // Allocated by the scheduler: what a thread allocates is its own to ThreadSanitizer.
  std::array<Variable, kMostVariables> variables;
  std::size_t variable_count = 0, static_bytes = 0, arena_used = 0;
  int left = 0, waiting = 0, line = 0, barriers = 0;
  std::uint64_t random = 1;
  Order order_of_memory;
};

// The message of undefined behaviour; a launch ends as soon as there is one.
extern std::string failure;

inline Running& self() { return *static_cast<Running*>(current); }

inline std::uint64_t drawn(std::uint64_t& random) {
  random ^= random << 13;
  random ^= random >> 7;
  random ^= random << 17;
  return random;
}

// Back to the scheduler.
inline void leave(bool done = false) {
  statistics.switches++;
  self().fiber->leave(done);
}

// Takes a thread that ends out of the barriers and meetings of others.
void end_early(Running& thread, Block& block);

}  // namespace emulator
