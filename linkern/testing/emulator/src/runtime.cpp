// The scheduler of blocks and threads.
//
// Compiled without sanitizers; EMULATOR_TSAN or EMULATOR_ASAN says which one instruments the
// kernels.
#include "runtime.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "fiber.hpp"
#include "threads.hpp"

#ifndef EMULATOR_UCONTEXT
asm(R"(
.text
.p2align 4
.globl emulator_switch
.hidden emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch, . - emulator_switch
)");
#endif

namespace emulator {

Thread* current = nullptr;
Settings settings;
Statistics statistics{};

namespace {

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

void (*kernel)(void**) = nullptr;
void** arguments = nullptr;
// A launch orders its threads after its start and before its end, and no thread or block
// before another.
char begun = 0, ended = 0;
std::string failure;

Running& self() { return *static_cast<Running*>(current); }

std::uint64_t drawn(std::uint64_t& random) {
  random ^= random << 13;
  random ^= random >> 7;
  random ^= random << 17;
  return random;
}

template <class Items> void shuffle(Items& items, std::uint64_t& random) {
  for (std::size_t i = items.size(); i > 1; i--)
    std::swap(items[i - 1], items[drawn(random) % i]);
}

void leave(bool done = false) {
  statistics.switches++;
  self().fiber->leave(done);
}

// The nth accesses of all lanes since they last met are one instruction if they agree.
void count_accesses(Block& block, Warp& warp) {
  auto of = [&](int i) -> std::vector<Access>& {
    return block.threads[warp.first + i]->accesses;
  };
  std::size_t least = of(0).size();
  for (int i = 1; i < warp.size; i++) least = std::min(least, of(i).size());
  for (std::size_t n = 0; n < least; n++) {
    Access lanes[kWarp];
    bool agree = true;
    for (int i = 0; i < warp.size; i++) {
      lanes[i] = of(i)[n];
      agree &= lanes[i].line == lanes[0].line && lanes[i].bytes == lanes[0].bytes;
    }
    if (!agree) break;
    statistics.accesses++;
    statistics.bank_passes += bank_passes(lanes, warp.size);
    statistics.least_bank_passes += std::max(1, warp.size * int(lanes[0].bytes) / 128);
  }
  for (int i = 0; i < warp.size; i++) of(i).clear();
}

}  // namespace

void fail(const char* what, int line) {
  char text[256];
  const Running& thread = self();
  std::snprintf(text, sizeof text, "%s: block (%u, %u, %u), thread %d, line %d", what,
                thread.block.x, thread.block.y, thread.block.z, thread.number, line);
  failure = text;
  leave(true);
  std::abort();
}

// -- barriers and warp operations

namespace {

void open_barrier(Block& block) {
  block.waiting = 0;
  for (auto& other : block.threads)
    if (other->state == State::waits_for_block) other->state = State::runs;
  for (Warp& warp : block.warps) count_accesses(block, warp);
}

// Ends a meeting if all lanes of its mask are there; lanes that have ended need not be.
bool complete(Block& block, Warp& warp, Meeting& meeting) {
  u32 mask = meeting.mask;
  if (meeting.arrived < __builtin_popcount(mask & warp.alive)) return false;
  meeting.arrived = 0;
  meeting.number++;
  if (meeting.together != nullptr) meeting.together(meeting.of_lanes, warp.size);
  for (int i = 0; i < warp.size; i++) {
    Running& lane = *block.threads[warp.first + i];
    if ((mask & warp.alive) >> i & 1) lane.state = State::runs;
    meeting.of_lanes[i] = nullptr;
  }
  if (__builtin_popcount(mask) == warp.size) count_accesses(block, warp);
  return true;
}

}  // namespace

void meet_block(int line) {
  Running& thread = self();
  Block& block = *thread.of;
  statistics.barriers++;
  char* order = block.order_of_memory.at(thread.barriers++);
  if (block.waiting == 0) block.line = line;
  if (block.line != line) fail("threads of a block are at different __syncthreads", line);
  thread.line = line;
  release(order);
  if (++block.waiting < block.left) {
    thread.state = State::waits_for_block;
    leave();
  } else {
    open_barrier(block);
    if (settings.schedule == Schedule::shuffled) give_way();
  }
  acquire(order);
}

namespace {

void meet(Together together, void* of_lane, int line, u32 mask, bool orders) {
  Running& thread = self();
  Block& block = *thread.of;
  Warp& warp = block.warps[thread.number / kWarp];
  statistics.meetings++;
  if (!(mask >> thread.lane & 1)) fail("a lane is not named by the mask of its operation", line);
  if (warp.size < kWarp) mask &= (1u << warp.size) - 1;
  Meeting* place = warp.meeting(mask);
  if (place == nullptr) fail("the lanes of a warp wait under more than 16 masks", line);
  Meeting& meeting = *place;
  if (meeting.arrived == 0) meeting.together = together;
  if (meeting.together != together) fail("lanes of a warp are at different instructions", line);
  meeting.of_lanes[thread.lane] = of_lane;
  thread.line = line;
  char* order = meeting.order.at(meeting.number);
  if (orders) release(order);
  meeting.arrived++;
  if (!complete(block, warp, meeting)) {
    thread.state = State::waits_for_warp;
    leave();
  } else {
    if (settings.schedule == Schedule::shuffled && drawn(block.random) % 4 == 0) give_way();
  }
  if (orders) acquire(order);
}

}  // namespace

void meet_warp(int line, u32 mask) { meet(nullptr, nullptr, line, mask, true); }
void meet_lanes(Together together, void* of_lane, int line, u32 mask) {
  meet(together, of_lane, line, mask, false);
}

void give_way() {
  self().gave_way = true;
  leave();
}

bool planted(int fault) { return fault == settings.fault; }

// -- variables in shared memory

void* shared_variable(const void* key, std::size_t bytes) {
  Block& block = *self().of;
  for (std::size_t i = 0; i < block.variable_count; i++)
    if (block.variables[i].key == key) return block.variables[i].place;
  std::size_t end = block.arena_used + (bytes + 2 * kBetween - 1) / kBetween * kBetween;
  block.static_bytes += bytes;
  if (block.static_bytes > kMostStatic || end > kArena)
    fail("the __shared__ variables of a block have more than 48 KiB", 0);
  unsigned char* place = block.arena + block.arena_used;
  block.variables[block.variable_count++] = {key, place};
  block.arena_used = end;
  unpoison(place, bytes);
  return place;
}

// -- copies

Landing landing() { return Landing(settings.landing); }
bool coin() { return drawn(self().of->random) & 1; }
Copy& begin_copy(void* to, const void* from, bool valid) {
  statistics.copies++;
  self().copies.push_back({to, from, valid, self().group});
  return self().copies.back();
}
Copy* copies(int& count) {
  count = int(self().copies.size());
  return self().copies.data();
}
int current_group() { return self().group; }
void end_group() { self().group++; }
void forget_landed() {
  auto& all = self().copies;
  all.erase(std::remove_if(all.begin(), all.end(),
                           [](const Copy& copy) { return copy.to == nullptr; }),
            all.end());
}

void count_banks(const void* place, std::size_t bytes, int line) {
  self().accesses.push_back({reinterpret_cast<std::uintptr_t>(place), bytes, line});
}

// -- running

namespace {

// Barriers and warps no longer wait for a thread that ends, as on a GPU since Volta.
void end_early(Running& thread, Block& block) {
  Warp& warp = block.warps[thread.number / kWarp];
  warp.alive &= ~(1u << thread.lane);
  block.left--;
  if (block.waiting > 0 && block.waiting == block.left) open_barrier(block);
  for (Meeting& meeting : warp.meetings)
    if (meeting.arrived > 0) complete(block, warp, meeting);
}

void thread_main() {
  Running& thread = self();
  thread.fiber->entered();
  acquire(&begun);
  kernel(arguments);
  release(&ended);
  for (const Copy& copy : thread.copies)
    if (copy.to != nullptr) fail("a thread ends with a cp.async that it has not waited for", 0);
  Block& block = *thread.of;
  thread.state = State::done;
  if (settings.early_ends) {
    end_early(thread, block);
    leave(true);
    std::abort();
  }
  // All threads must reach every barrier, whichever ends first.
  if (block.left == int(block.threads.size())) block.barriers = thread.barriers;
  block.left--;
  if (block.waiting > 0 || block.barriers != thread.barriers)
    fail("a thread ends where others wait at __syncthreads", block.line);
  leave(true);
  std::abort();
}

// Runs one thread until it waits; returns false if it cannot run.
bool run(Running& thread) {
  if (thread.state != State::runs || thread.gave_way || !failure.empty()) return false;
  current = &thread;
  thread.fiber->enter();
  return true;
}

// Runs all threads as far as they can, in the order of the schedule.
bool turn(Block& block) {
  bool ran = false;
  if (settings.schedule == Schedule::ahead) {
    for (bool again = true; again;) {
      again = false;
      if (drawn(block.random) % 61 == 0) shuffle(block.order, block.random);
      for (int number : block.order) {
        const Warp& warp = block.warps[number];
        for (int i = 0; i < warp.size; i++) again |= run(*block.threads[warp.first + i]);
        if (again) break;  // start again with the first warp
      }
      ran |= again;
    }
  } else {
    if (settings.schedule == Schedule::shuffled) shuffle(block.order, block.random);
    for (int number : block.order) ran |= run(*block.threads[number]);
  }
  for (auto& thread : block.threads) {
    ran |= thread->gave_way;
    thread->gave_way = false;
  }
  return ran;
}

// Creating a fiber takes longer than most of them run, so fibers are reused. ThreadSanitizer
// orders the uses of a fiber: it may be reused in another launch, but not in another block
// of the same launch, since blocks are not ordered.
#ifdef EMULATOR_TSAN
constexpr bool kFreshInEachBlock = true;
#else
constexpr bool kFreshInEachBlock = false;
#endif
// It knows 8128 threads at most, so those that ended first are destroyed; their stacks are
// missing in reports.
constexpr std::size_t kMostLeftBehind = 4000;
typedef std::deque<std::unique_ptr<Fiber>> Fibers;
// Never destroyed: the sanitizer may be gone by then.
Fibers &idle = *new Fibers, &left_behind = *new Fibers;

std::unique_ptr<Fiber> idle_fiber() {
  if (idle.empty()) return std::make_unique<Fiber>();
  std::unique_ptr<Fiber> fiber = std::move(idle.back());
  idle.pop_back();
  return fiber;
}

// New memory for a block, filled with NaN.
unsigned char* nan_bytes(std::size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 1024, bytes)) std::abort();
  std::memset(memory, 0xff, bytes);
  return static_cast<unsigned char*>(memory);
}

void begin(Block& block, long number, dim3 grid, dim3 size, std::size_t shared) {
  block.shared = nan_bytes(std::max<std::size_t>(shared, 1));
  block.arena = nan_bytes(kArena);
  poison(block.arena, kArena);
  block.variable_count = block.static_bytes = block.arena_used = 0;
  release(&begun);
  int count = int(block.threads.size());
  block.left = count;
  block.waiting = 0;
  block.random = (settings.seed + 1000003 * number + 1) * 0x9e3779b97f4a7c15ull | 1;
  block.warps.assign((count + kWarp - 1) / kWarp, Warp());
  for (int i = 0; i < int(block.warps.size()); i++) {
    block.warps[i].first = i * kWarp;
    block.warps[i].size = std::min(kWarp, count - i * kWarp);
    block.warps[i].alive = kWholeWarp >> (kWarp - block.warps[i].size);
  }
  bool by_warp = settings.schedule == Schedule::ahead;
  block.order.resize(by_warp ? block.warps.size() : block.threads.size());
  std::iota(block.order.begin(), block.order.end(), 0);
  if (settings.schedule == Schedule::reverse)
    std::reverse(block.order.begin(), block.order.end());
  if (by_warp) shuffle(block.order, block.random);
  auto along = [](long n, dim3 of) {
    return dim3{unsigned(n % of.x), unsigned(n / of.x % of.y), unsigned(n / of.x / of.y)};
  };
  for (int i = 0; i < count; i++) {
    Running& thread = *block.threads[i];
    thread.index = along(i, size);
    thread.block = along(number, grid);
    thread.block_size = size;
    thread.grid_size = grid;
    thread.shared = block.shared;
    thread.lane = i % kWarp;
    thread.number = i;
    thread.of = &block;
    thread.state = State::runs;
    thread.gave_way = false;
    thread.group = thread.barriers = 0;
    thread.copies.clear();
    thread.accesses.clear();
    if (kFreshInEachBlock && thread.fiber) left_behind.push_back(std::move(thread.fiber));
    if (left_behind.size() > kMostLeftBehind) left_behind.pop_front();
    if (!thread.fiber) thread.fiber = idle_fiber();
    thread.fiber->begin(thread_main);
  }
}

void launch(dim3 grid, dim3 size, std::size_t shared) {
  long total = long(grid.x) * grid.y * grid.z;
  std::vector<long> numbers(total);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::uint64_t random = settings.seed * 77 + 1;
  if (settings.schedule == Schedule::reverse) std::reverse(numbers.begin(), numbers.end());
  if (settings.schedule == Schedule::shuffled) shuffle(numbers, random);
  long next = 0;
  // Freed at the end, so that the sanitizer sees no reuse during the launch.
  std::vector<unsigned char*> memories;
  std::vector<std::unique_ptr<Block>> resident(
      std::min<long>(std::max(settings.resident, 1), total));
  for (auto& block : resident) {
    block = std::make_unique<Block>();
    for (unsigned i = 0; i < size.x * size.y * size.z; i++)
      block->threads.push_back(std::make_unique<Running>());
    begin(*block, numbers[next++], grid, size, shared);
    memories.insert(memories.end(), {block->shared, block->arena});
  }
  for (bool any = true; any && failure.empty();) {
    any = false;
    for (auto& block : resident) {
      if (block->left == 0) continue;
      any = true;
      bool ran = turn(*block);
      if (!failure.empty()) break;
      if (block->left > 0) {
        if (ran) continue;
        for (auto& thread : block->threads)
          if (thread->state != State::done) {
            char text[160];
            std::snprintf(text, sizeof text, "deadlock: block %u, thread %d waits for its %s at line %d",
                          thread->block.x, thread->number,
                          thread->state == State::waits_for_warp ? "warp" : "block", thread->line);
            failure = text;
            break;
          }
        break;
      }
      if (next < total) {
        begin(*block, numbers[next++], grid, size, shared);
        memories.insert(memories.end(), {block->shared, block->arena});
      }
    }
  }
  acquire(&ended);
  for (unsigned char* memory : memories) std::free(memory);
  for (auto& block : resident)
    for (auto& thread : block->threads) left_behind.push_back(std::move(thread->fiber));
  for (auto& fiber : left_behind) idle.push_back(std::move(fiber));
  left_behind.clear();
  current = nullptr;
}

}  // namespace
}  // namespace emulator

// -- functions that Python calls

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void emulator_configure(int schedule, int landing, int truncates,
                                 unsigned long long seed, int resident, int early_ends,
                                 int fault) {
  emulator::settings = {emulator::Schedule(schedule), landing, truncates != 0, seed, resident,
                        early_ends != 0, fault};
}

EXPORTED void emulator_statistics(long long* found) {
  std::memcpy(found, &emulator::statistics, sizeof emulator::statistics);
}

// Runs a kernel to its end; returns an error message, or null.
EXPORTED const char* emulator_launch(void (*kernel)(void**), const unsigned* grid,
                                     const unsigned* block, unsigned long long shared,
                                     void** arguments) {
  using namespace emulator;
  statistics = {};
  failure.clear();
  dim3 of_grid{grid[0], grid[1], grid[2]}, of_block{block[0], block[1], block[2]};
  long threads = long(of_block.x) * of_block.y * of_block.z;
  if (threads < 1 || threads > kMostThreads) return "a block has 1 to 1024 threads";
  if (shared > kMostShared) return "a block has at most 227 KiB of shared memory";
  if (of_grid.x < 1 || of_grid.x > 0x7fffffffu || of_grid.y < 1 || of_grid.y > 65535 ||
      of_grid.z < 1 || of_grid.z > 65535)
    return "a grid has 1 to 2^31 - 1 blocks along x, 1 to 65535 along y and z";
  emulator::kernel = kernel;
  emulator::arguments = arguments;
  launch(of_grid, of_block, shared);
  return failure.empty() ? nullptr : failure.c_str();
}
