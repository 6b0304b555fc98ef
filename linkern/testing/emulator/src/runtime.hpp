// Settings and counters of a launch; kernels do not include them.
#pragma once
#include <cstdint>

namespace emulator {

enum class Schedule {
  forward,   // thread by thread, each as far as it can run
  reverse,   // the same, from the last one
  shuffled,  // in a new order in every round
  ahead,     // one warp runs far ahead of the others; it changes now and then
};

struct Settings {
  Schedule schedule = Schedule::forward;
  int landing = 1;     // when copies finish, a `Landing`
  bool truncates = false;  // sums of products are truncated instead of rounded
  std::uint64_t seed = 1;
  int resident = 1;    // blocks that run at the same time
  bool early_ends = false;  // threads may end before others pass a barrier
  int fault = -1;      // number of the planted fault
};
extern Settings settings;

// Counters of the last launch.
struct Statistics {
  long long switches, barriers, meetings, copies, products;
  long long matrix_loads, matrix_passes;  // without bank conflicts four passes for each load
  long long accesses, bank_passes, least_bank_passes;
};
extern Statistics statistics;

struct Access {
  std::uintptr_t place;
  std::size_t bytes;
  int line;
};
int bank_passes(const Access* of_lanes, int count);

}  // namespace emulator
