// Operations of whole warps as the PTX manual defines them.
#include <array>
#include <set>

#include "emulator.hpp"
#include "runtime.hpp"

namespace emulator {

void shuffle_lanes(void** of_lanes, int count) {
  auto lane = [&](int i) { return static_cast<Shuffled*>(of_lanes[i]); };
  for (int i = 0; i < count; i++) {
    // The value of a missing lane is undefined; here it is the lane's own.
    int from = lane(i)->from < count ? lane(i)->from : i;
    lane(i)->found = lane(from)->given;
  }
}

// -- ldmatrix: lane 8 m + r addresses row r of matrix m; each lane gets two entries of each

namespace {

constexpr int kLanes = 32;

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
  if (count != kLanes) fail("ldmatrix: the warp has fewer than 32 lanes", 0);
  statistics.matrix_loads++;
  for (int first = 0; first < kLanes; first += 8)
    statistics.matrix_passes += passes(of_lanes, first);
  for (int matrix = 0; matrix < 4; matrix++) {
    auto entry = [&](int row, int column) -> u32 {
      const auto* lane = static_cast<Rows*>(of_lanes[8 * matrix + row]);
      u16 numbers[8];
      std::memcpy(numbers, &lane->row, sizeof numbers);
      return numbers[column];
    };
    for (int i = 0; i < kLanes; i++) {
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
  if (count != kLanes) fail("mma: the warp has fewer than 32 lanes", 0);
  statistics.products++;
  auto lane = [&](int i) { return static_cast<Product*>(of_lanes[i]); };
  float a[16][16], b[16][8];
  for (int i = 0; i < kLanes; i++) {
    int group = i / 4, pair = 2 * (i % 4);
    for (int r = 0; r < 4; r++) {
      int row = group + 8 * (r & 1), column = pair + 8 * (r >> 1);
      a[row][column] = widened(T(), u16(lane(i)->a[r]));
      a[row][column + 1] = widened(T(), u16(lane(i)->a[r] >> 16));
    }
    for (int r = 0; r < 2; r++) {
      b[pair + 8 * r][group] = widened(T(), u16(lane(i)->b[r]));
      b[pair + 8 * r + 1][group] = widened(T(), u16(lane(i)->b[r] >> 16));
    }
  }
  for (int i = 0; i < kLanes; i++)
    for (int r = 0; r < 4; r++) {
      int row = i / 4 + 8 * (r >> 1), column = 2 * (i % 4) + (r & 1);
      double sum = lane(i)->sum[r];
      for (int k = 0; k < 16; k++) sum += double(a[row][k]) * b[k][column];
      lane(i)->sum[r] = to_float(sum);
    }
}

}  // namespace

void multiply_bf16(void** of_lanes, int count) { multiply<bf16>(of_lanes, count); }
void multiply_f16(void** of_lanes, int count) { multiply<f16>(of_lanes, count); }

// -- 16 bits

float widened(bf16, u16 bits) { return __uint_as_float(u32(bits) << 16); }

u16 rounded(bf16, float x) {
  u32 bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (std::isnan(x)) return 0x7fff;
  return u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float widened(f16, u16 bits) {
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float size = exponent == 31 ? (fraction ? NAN : INFINITY)
               : exponent    ? std::ldexp(1024.0f + fraction, exponent - 25)
                             : std::ldexp(float(fraction), -24);
  return bits & 0x8000 ? -size : size;
}

u16 rounded(f16, float x) {
  u16 sign = std::signbit(x) ? 0x8000 : 0;
  float size = std::fabs(x);
  if (std::isnan(x)) return 0x7fff;
  if (size >= 65520.0f) return sign | 0x7c00;
  if (size < std::ldexp(1.0f, -14)) return sign | u16(std::nearbyint(std::ldexp(size, 24)));
  int exponent;
  float fraction = std::nearbyint(std::ldexp(std::frexp(size, &exponent), 11));
  // A fraction of 2048 carries into the exponent by itself.
  return sign | u16((exponent + 13) * 1024 + int(fraction));
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
