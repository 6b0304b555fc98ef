// A program that calls one function of CUDA C++ with arrays of files and numbers.
//
// It reads `call.txt` in a folder: the schedule, the size of the launch, and a line for each
// parameter. It writes the arrays into the folder, and their shapes into `results.txt`.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cuda.hpp"
#include "halves.hpp"
#include "torch.hpp"

extern "C" void emulator_configure(int, int, int, unsigned long long, int, int, int);
extern "C" const char* emulator_launch(void (*)(void**), const unsigned*, const unsigned*,
                                       unsigned long long, void**);

namespace emulator {

// A launch on the scheduler, which runs it to its end.
class Launch {
 public:
  Launch(dim3 grid, dim3 block, std::size_t shared = 0, const void* = nullptr)
      : grid_(grid), block_(block), shared_(shared) {}

  template <class Call> void operator=(Call call) const {
    auto run = [](void** calls) { (*static_cast<Call*>(calls[0]))(); };
    void* calls[] = {&call};
    const unsigned grid[] = {grid_.x, grid_.y, grid_.z};
    const unsigned block[] = {block_.x, block_.y, block_.z};
    const char* failure = emulator_launch(run, grid, block, shared_, calls);
    if (failure != nullptr) stop(kUndefined, failure);
  }

 private:
  dim3 grid_, block_;
  std::size_t shared_;
};

// -- arguments: a line of call.txt each

struct Argument {
  std::string name, kind, dtype, number;  // kind: read, write, zeros, both, null or number
  std::vector<long> shape;
  void* data = nullptr;

  bool written() const { return kind == "write" || kind == "zeros" || kind == "both"; }
  bool fresh() const { return kind == "write" || kind == "zeros"; }
  std::size_t bytes() const {
    std::size_t total = bytes_of(dtype);
    for (long n : shape) total *= std::size_t(n);
    return total;
  }
  std::string file(const std::string& folder) const { return folder + "/" + name + ".bin"; }
};

struct Calling {
  std::string folder;
  unsigned grid[3], block[3];
  unsigned long long shared = 0;
  std::vector<Argument> arguments;
  std::ofstream results;

  explicit Calling(const char* where) : folder(where), results(folder + "/results.txt") {
    std::ifstream text(folder + "/call.txt");
    int schedule, resident, count;
    unsigned long long seed;
    text >> schedule >> seed >> resident;
    emulator_configure(schedule, 1, 0, seed, resident, 1, -1);
    for (unsigned& n : grid) text >> n;
    for (unsigned& n : block) text >> n;
    text >> shared >> count;
    arguments.resize(count);
    for (Argument& argument : arguments) {
      int axes;
      text >> argument.name >> argument.kind >> argument.dtype >> argument.number >> axes;
      argument.shape.resize(axes);
      for (long& n : argument.shape) text >> n;
    }
  }

  // Memory for an array, filled from its file, with zeros or with NaN.
  void* array(Argument& argument) {
    std::size_t bytes = argument.bytes();
    if (posix_memalign(&argument.data, 256, bytes ? bytes : 1)) std::abort();
    std::memset(argument.data, argument.kind == "zeros" ? 0 : 0xff, bytes);
    if (!argument.fresh()) {
      std::ifstream file(argument.file(folder), std::ios::binary);
      file.read(static_cast<char*>(argument.data), std::streamsize(bytes));
    }
    return argument.data;
  }

  void save(const Argument& argument) {
    std::ofstream file(argument.file(folder), std::ios::binary);
    file.write(static_cast<const char*>(argument.data), std::streamsize(argument.bytes()));
    results << argument.name << " " << argument.dtype;
    for (long n : argument.shape) results << " " << n;
    results << "\n";
  }
};

// The value of a parameter of type T.
template <class T> struct Parameter {
  static_assert(std::is_arithmetic_v<T> || std::is_convertible_v<T, float>,
                "parameters are arrays and numbers: call a host function that launches");
  static T from(Argument& argument, Calling&) {
    if (argument.kind != "number")
      stop(kUsage, "`" + argument.name + "` is a number; give it as one.");
    if constexpr (std::is_integral_v<T>) return T(std::strtoll(argument.number.c_str(), nullptr, 10));
    else return T(float(std::strtod(argument.number.c_str(), nullptr)));
  }
};
template <> struct Parameter<double> {
  static double from(Argument& argument, Calling&) {
    return std::strtod(argument.number.c_str(), nullptr);
  }
};
template <class T> struct Parameter<T*> {
  static T* from(Argument& argument, Calling& calling) {
    typedef std::remove_cv_t<T> Entry;
    if (argument.kind == "null") return nullptr;
    if (argument.kind == "number")
      stop(kUsage, "`" + argument.name + "` is an array; read or write it.");
    const std::string dtype = Dtype<Entry>::name;
    if (argument.fresh() && dtype != "?") argument.dtype = dtype;
    if (dtype != "?" && dtype != argument.dtype)
      stop(kUsage, "`" + argument.name + "` is an array of " + dtype + ", but the tensor is of " +
                       argument.dtype + ".");
    return static_cast<T*>(calling.array(argument));
  }
};

template <class Call, class... Given, std::size_t... I>
void call_with(Calling& calling, Call call, std::tuple<Given...>*, std::index_sequence<I...>) {
  if (calling.arguments.size() != sizeof...(Given))
    stop(kUsage, "the function has another number of parameters than its text.");
  call(Parameter<std::decay_t<Given>>::from(calling.arguments[I], calling)...);
  for (Argument& argument : calling.arguments)
    if (argument.written()) calling.save(argument);
}

// Launches a kernel once.
template <class... Given> void run_kernel(const char* folder, void (*kernel)(Given...)) {
  Calling calling(folder);
  auto launched = [&](auto... values) {
    dim3 grid{calling.grid[0], calling.grid[1], calling.grid[2]};
    dim3 block{calling.block[0], calling.block[1], calling.block[2]};
    Launch(grid, block, calling.shared) = [=]() { kernel(values...); };
  };
  call_with(calling, launched, static_cast<std::tuple<Given...>*>(nullptr),
            std::index_sequence_for<Given...>());
}

template <> struct Parameter<at::Tensor> {
  static at::Tensor from(Argument& argument, Calling& calling) {
    if (argument.kind == "null") return {};
    if (argument.kind == "number")
      stop(kUsage, "`" + argument.name + "` is a tensor; read or write it.");
    return at::Tensor(calling.array(argument), at::dtype_named(argument.dtype), argument.shape);
  }
};

// Saves the tensors that a host function returns; other results are status codes.
template <class T> void save_result(Calling&, const T&, int = 0) {}
inline void save_result(Calling& calling, const at::Tensor& tensor, int number = 0) {
  at::Tensor whole = tensor.contiguous();
  Argument result;
  result.name = "result" + std::to_string(number);
  result.dtype = at::name_of(whole.scalar_type());
  result.shape.assign(whole.sizes().begin(), whole.sizes().end());
  result.data = whole.data_ptr();
  calling.save(result);
}
inline void save_result(Calling& calling, const std::vector<at::Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); i++) save_result(calling, tensors[i], int(i));
}
template <class... T> void save_result(Calling& calling, const std::tuple<T...>& tensors) {
  std::apply([&](auto... each) { save_result(calling, std::vector<at::Tensor>{each...}); },
             tensors);
}

// Calls a function that launches kernels.
template <class R, class... Given> void run_host(const char* folder, R (*function)(Given...)) {
  Calling calling(folder);
  auto called = [&](auto... values) {
    if constexpr (std::is_void_v<R>) function(values...);
    else save_result(calling, function(values...));
  };
  call_with(calling, called, static_cast<std::tuple<Given...>*>(nullptr),
            std::index_sequence_for<Given...>());
}

}  // namespace emulator
