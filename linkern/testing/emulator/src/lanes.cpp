// Shuffles and votes of whole warps, and banks of shared memory.
#include <array>
#include <set>

#include "runtime.hpp"
#include "threads.hpp"

namespace emulator {

void shuffle_lanes(void** of_lanes, int count) {
  auto lane = [&](int i) { return static_cast<Shuffled*>(of_lanes[i]); };
  for (int i = 0; i < count; i++) {
    if (lane(i) == nullptr) continue;
    // The value of a missing lane is undefined; here it is the lane's own.
    int from = lane(i)->from < count && lane(lane(i)->from) ? lane(i)->from : i;
    lane(i)->result = lane(from)->value;
  }
}

void count_votes(void** of_lanes, int count) {
  auto lane = [&](int i) { return static_cast<Vote*>(of_lanes[i]); };
  u32 ballots = 0;
  for (int i = 0; i < count; i++)
    if (lane(i) != nullptr && lane(i)->ballot) ballots |= 1u << i;
  for (int i = 0; i < count; i++)
    if (lane(i) != nullptr) lane(i)->result = ballots;
}

// -- banks of plain accesses

// A word of a bank is read once for all lanes that need it. Lanes are served in groups that
// need at most 128 bytes.
int bank_passes(const Access* of_lanes, int count) {
  int share = std::max<int>(1, 128 / int(of_lanes[0].bytes)), passes = 0;
  for (int first = 0; first < count; first += share) {
    std::array<std::set<std::uintptr_t>, 32> words;
    for (int i = first; i < std::min(first + share, count); i++)
      for (std::uintptr_t byte = 0; byte < of_lanes[i].bytes; byte += 4) {
        std::uintptr_t word = (of_lanes[i].place + byte) / 4;
        words[word % 32].insert(word);
      }
    std::size_t most = 0;
    for (const auto& bank : words) most = std::max(most, bank.size());
    passes += int(most);
  }
  return passes;
}

}  // namespace emulator
