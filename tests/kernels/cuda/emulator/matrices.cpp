// Matrix operations of whole warps as the PTX manual defines them.
#include <array>

#include "emulator.hpp"
#include "runtime.hpp"

namespace emulator {

// -- ldmatrix: lane 8 m + r addresses row r of matrix m; each lane gets two entries of each

namespace {

bool whole(void** of_lanes, int count) {
  return count == kWarp && std::find(of_lanes, of_lanes + count, nullptr) == of_lanes + count;
}

// Passes to read 8 rows of 16 bytes: the largest number of distinct rows in a bank group.
int passes(void** of_lanes, int first) {
  std::array<int, 8> in_group{};
  for (int i = first; i < first + 8; i++) {
    const void* place = static_cast<Rows*>(of_lanes[i])->place;
    bool seen = false;
    for (int k = first; k < i; k++) seen |= static_cast<Rows*>(of_lanes[k])->place == place;
    if (!seen) in_group[reinterpret_cast<std::uintptr_t>(place) / 16 % 8]++;
  }
  return *std::max_element(in_group.begin(), in_group.end());
}

void spread(void** of_lanes, int count, bool transposed) {
  if (!whole(of_lanes, count)) fail("ldmatrix: the warp has fewer than 32 lanes", 0);
  statistics.matrix_loads++;
  for (int first = 0; first < kWarp; first += 8)
    statistics.matrix_passes += passes(of_lanes, first);
  for (int matrix = 0; matrix < 4; matrix++) {
    auto entry = [&](int row, int column) -> u32 {
      const auto* lane = static_cast<Rows*>(of_lanes[8 * matrix + row]);
      u16 numbers[8];
      std::memcpy(numbers, &lane->row, sizeof numbers);
      return numbers[column];
    };
    for (int i = 0; i < kWarp; i++) {
      int row = i / 4, column = 2 * (i % 4);
      static_cast<Rows*>(of_lanes[i])->to[matrix] =
          transposed ? entry(column, row) | entry(column + 1, row) << 16
                     : entry(row, column) | entry(row, column + 1) << 16;
    }
  }
}

}  // namespace

void spread_rows(void** of_lanes, int count) { spread(of_lanes, count, false); }
void spread_columns(void** of_lanes, int count) { spread(of_lanes, count, true); }

// -- mma.m16n8k16: lane 4 g + t has rows g and g + 8, columns 2 t and 2 t + 1 of each block

namespace {

// Rounds to nearest, or truncates as a tensor core may.
float to_float(double exact) {
  float nearest = static_cast<float>(exact);
  if (settings.truncates && std::fabs(double(nearest)) > std::fabs(exact))
    nearest = std::nextafterf(nearest, 0.0f);
  return nearest;
}

template <class T> void multiply(void** of_lanes, int count) {
  if (!whole(of_lanes, count)) fail("mma: the warp has fewer than 32 lanes", 0);
  statistics.products++;
  auto lane = [&](int i) { return static_cast<Product*>(of_lanes[i]); };
  float a[16][16], b[16][8];
  for (int i = 0; i < kWarp; i++) {
    int group = i / 4, pair = 2 * (i % 4);
    for (int r = 0; r < 4; r++) {
      int row = group + 8 * (r & 1), column = pair + 8 * (r >> 1);
      a[row][column] = widened(T{u16(lane(i)->a[r])});
      a[row][column + 1] = widened(T{u16(lane(i)->a[r] >> 16)});
    }
    for (int r = 0; r < 2; r++) {
      b[pair + 8 * r][group] = widened(T{u16(lane(i)->b[r])});
      b[pair + 8 * r + 1][group] = widened(T{u16(lane(i)->b[r] >> 16)});
    }
  }
  for (int i = 0; i < kWarp; i++)
    for (int r = 0; r < 4; r++) {
      int row = i / 4 + 8 * (r >> 1), column = 2 * (i % 4) + (r & 1);
      double sum = lane(i)->sum[r];
      for (int k = 0; k < 16; k++) sum += double(a[row][k]) * b[k][column];
      lane(i)->sum[r] = to_float(sum);
    }
}

}  // namespace

void multiply_bf16(void** of_lanes, int count) { multiply<Bf16>(of_lanes, count); }
void multiply_f16(void** of_lanes, int count) { multiply<F16>(of_lanes, count); }

}  // namespace emulator
