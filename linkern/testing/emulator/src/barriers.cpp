// Barriers, operations of warps, and memory of blocks, as threads call them.
//
// Like runtime.cpp, compiled without sanitizers.
#include <cstdio>

#include "block.hpp"

namespace emulator {

namespace {

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

// -- barriers and operations of warps

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

// Barriers and warps no longer wait for a thread that ends, as on a GPU since Volta.
void end_early(Running& thread, Block& block) {
  Warp& warp = block.warps[thread.number / kWarp];
  warp.alive &= ~(1u << thread.lane);
  block.left--;
  if (block.waiting > 0 && block.waiting == block.left) open_barrier(block);
  for (Meeting& meeting : warp.meetings)
    if (meeting.arrived > 0) complete(block, warp, meeting);
}

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

}  // namespace emulator
