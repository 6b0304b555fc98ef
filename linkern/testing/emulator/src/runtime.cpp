// The scheduler of blocks and threads.
//
// Compiled without sanitizers; EMULATOR_TSAN or EMULATOR_ASAN says which one instruments the
// kernels.
#include <cstdio>
#include <deque>
#include <numeric>

#include "block.hpp"

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
std::string failure;

namespace {

void (*kernel)(void**) = nullptr;
void** arguments = nullptr;
// A launch orders its threads after its start and before its end, and no thread or block
// before another.
char begun = 0, ended = 0;

template <class Items> void shuffle(Items& items, std::uint64_t& random) {
  for (std::size_t i = items.size(); i > 1; i--)
    std::swap(items[i - 1], items[drawn(random) % i]);
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
// of the same launch, since blocks are not ordered. Nor may its list of copies.
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
std::vector<std::vector<Copy>> lists_left_behind;

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
    if (kFreshInEachBlock) lists_left_behind.push_back(std::move(thread.copies));
    thread.copies.clear();
    thread.accesses.clear();
    if (kFreshInEachBlock && thread.fiber) left_behind.push_back(std::move(thread.fiber));
    if (left_behind.size() > kMostLeftBehind) left_behind.pop_front();
    if (!thread.fiber) thread.fiber = idle_fiber();
    thread.fiber->begin(thread_main);
  }
}

// The message of a block in which no thread can run.
std::string deadlock(const Block& block) {
  char text[160] = "";
  for (auto& thread : block.threads) {
    if (thread->state == State::done) continue;
    std::snprintf(text, sizeof text, "deadlock: block %u, thread %d waits for its %s at line %d",
                  thread->block.x, thread->number,
                  thread->state == State::waits_for_warp ? "warp" : "block", thread->line);
    break;
  }
  return text;
}

void launch(dim3 grid, dim3 size, std::size_t shared) {
  long total = long(grid.x) * grid.y * grid.z;
  std::vector<long> numbers(total);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::uint64_t random = settings.seed * 77 + 1;
  if (settings.schedule == Schedule::reverse) std::reverse(numbers.begin(), numbers.end());
  if (settings.schedule == Schedule::shuffled) shuffle(numbers, random);
  long next = 0;
  // Memory of blocks that ThreadSanitizer must not see reused during the launch.
  std::vector<unsigned char*> memories;
  std::vector<std::unique_ptr<Block>> resident(
      std::min<long>(std::max(settings.resident, 1), total));
  for (auto& block : resident) {
    block = std::make_unique<Block>();
    for (unsigned i = 0; i < size.x * size.y * size.z; i++)
      block->threads.push_back(std::make_unique<Running>());
    begin(*block, numbers[next++], grid, size, shared);
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
        failure = deadlock(*block);
        break;
      }
      if (next < total) {
        if (kFreshInEachBlock) {
          memories.insert(memories.end(), {block->shared, block->arena});
        } else {
          std::free(block->shared);
          std::free(block->arena);
        }
        begin(*block, numbers[next++], grid, size, shared);
      }
    }
  }
  acquire(&ended);
  for (unsigned char* memory : memories) std::free(memory);
  for (auto& block : resident) {
    std::free(block->shared);
    std::free(block->arena);
    for (auto& thread : block->threads) left_behind.push_back(std::move(thread->fiber));
  }
  for (auto& fiber : left_behind) idle.push_back(std::move(fiber));
  left_behind.clear();
  lists_left_behind.clear();
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
