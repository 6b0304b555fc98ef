// What the parts of the emulator share, and kernels do not see.
#pragma once
#include <cstdint>

namespace emulator {

enum class Schedule {
  forward,   // thread by thread, each as far as it can go
  reverse,   // the same, from the last one
  shuffled,  // in another order at every turn
  ahead,     // one warp runs far ahead of the others, seldom the same for long
};

struct Settings {
  Schedule schedule = Schedule::forward;
  int landing = 1;     // of copies, a `Landing`
  bool truncates = false;  // sums of products are cut off instead of rounded
  std::uint64_t seed = 1;
  int resident = 1;    // blocks that run at the same time
  int fault = -1;      // which is planted
};
extern Settings settings;

// How often what was done, since the last launch.
struct Statistics {
  long long switches, barriers, meetings, copies, products;
  long long matrix_loads, matrix_passes;  // four passes each are none too many
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
