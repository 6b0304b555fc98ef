// Names of dtypes, as in safetensors, and the end of a program.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <string>

#include "halves.hpp"

namespace emulator {

// Exit codes: the call cannot be made, or a launch has undefined behaviour.
constexpr int kUsage = 2, kUndefined = 3;

[[noreturn]] inline void stop(int code, const std::string& message) {
  std::fprintf(stderr, "emulator: %s\n", message.c_str());
  std::fflush(nullptr);
  std::_Exit(code);
}

template <class T> struct Dtype { static constexpr const char* name = "?"; };
#define EMULATOR_DTYPE(T, text) \
  template <> struct Dtype<T> { static constexpr const char* name = text; };
EMULATOR_DTYPE(float, "F32")
EMULATOR_DTYPE(float2, "F32")
EMULATOR_DTYPE(float4, "F32")
EMULATOR_DTYPE(double, "F64")
EMULATOR_DTYPE(double2, "F64")
EMULATOR_DTYPE(__half, "F16")
EMULATOR_DTYPE(__half2, "F16")
EMULATOR_DTYPE(__nv_bfloat16, "BF16")
EMULATOR_DTYPE(__nv_bfloat162, "BF16")
EMULATOR_DTYPE(int, "I32")
EMULATOR_DTYPE(long, "I64")
EMULATOR_DTYPE(long long, "I64")
EMULATOR_DTYPE(short, "I16")
EMULATOR_DTYPE(signed char, "I8")
EMULATOR_DTYPE(char, "I8")
EMULATOR_DTYPE(unsigned char, "U8")
EMULATOR_DTYPE(bool, "BOOL")

inline std::size_t bytes_of(const std::string& dtype) {
  if (dtype == "F64" || dtype == "I64") return 8;
  if (dtype == "F32" || dtype == "I32") return 4;
  return dtype == "F16" || dtype == "BF16" || dtype == "I16" ? 2 : 1;
}

}  // namespace emulator
