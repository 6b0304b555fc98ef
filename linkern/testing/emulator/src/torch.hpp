// Tensors of PyTorch, as far as the host code of an extension handles them.
//
// A tensor is memory with sizes and strides. A reshape, a transposed view and what allocates
// are here; arithmetic on tensors is not.
#pragma once
#include <array>
#include <initializer_list>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "dtypes.hpp"

namespace at {

using std::int64_t;
typedef std::vector<int64_t> IntArrayRef;
enum class ScalarType { Float, Double, Half, BFloat16, Int, Long, Short, Char, Byte, Bool };
constexpr ScalarType kFloat = ScalarType::Float, kDouble = ScalarType::Double;
constexpr ScalarType kHalf = ScalarType::Half, kBFloat16 = ScalarType::BFloat16;
constexpr ScalarType kInt = ScalarType::Int, kLong = ScalarType::Long;
constexpr ScalarType kFloat32 = kFloat, kFloat64 = kDouble, kInt32 = kInt, kInt64 = kLong;
constexpr ScalarType kFloat16 = kHalf;

inline const char* const dtype_names[] = {"F32", "F64", "F16", "BF16", "I32",
                                          "I64", "I16", "I8",  "U8",   "BOOL"};
inline const char* name_of(ScalarType type) { return dtype_names[int(type)]; }
inline ScalarType dtype_named(const std::string& name) {
  for (int i = 0; i < 10; i++)
    if (name == dtype_names[i]) return ScalarType(i);
  emulator::stop(emulator::kUsage, "no tensor of " + name + " can be given.");
}
template <class T> ScalarType dtype_of() { return dtype_named(emulator::Dtype<T>::name); }

struct Device {
  bool operator==(const Device&) const { return true; }
  int index() const { return 0; }
};
constexpr Device kCUDA{};
struct TensorOptions {
  ScalarType type = kFloat;
  TensorOptions() = default;
  TensorOptions(ScalarType type) : type(type) {}
  TensorOptions dtype(ScalarType other) const { return TensorOptions(other); }
  template <class Where> TensorOptions device(Where, int = 0) const { return *this; }
  TensorOptions requires_grad(bool) const { return *this; }
};

template <class T> struct RestrictPtrTraits {};
template <class T> struct DefaultPtrTraits {};

// Entries of a tensor of N axes; indexed once for each axis.
template <class T, int N, class = void, class Index = int> class PackedTensorAccessor {
 public:
  PackedTensorAccessor(T* data, const int64_t* sizes, const int64_t* strides) : data_(data) {
    for (int i = 0; i < N; i++) sizes_[i] = Index(sizes[i]), strides_[i] = Index(strides[i]);
  }
  Index size(int axis) const { return sizes_[axis]; }
  Index stride(int axis) const { return strides_[axis]; }
  T* data() const { return data_; }
  decltype(auto) operator[](Index i) const {
    T* place = data_ + i * strides_[0];
    if constexpr (N == 1) {
      return static_cast<T&>(*place);
    } else {
      int64_t sizes[N - 1], strides[N - 1];
      for (int k = 1; k < N; k++) sizes[k - 1] = sizes_[k], strides[k - 1] = strides_[k];
      return PackedTensorAccessor<T, N - 1, void, Index>(place, sizes, strides);
    }
  }

 private:
  T* data_;
  Index sizes_[N], strides_[N];
};

class Tensor {
 public:
  Tensor() = default;
  // Memory of a tensor is never freed: a program makes one call.
  Tensor(void* data, ScalarType type, IntArrayRef sizes)
      : data_(static_cast<char*>(data)), type_(type), sizes_(sizes), strides_(sizes.size()) {
    int64_t stride = 1;
    for (std::size_t i = sizes.size(); i-- > 0; stride *= sizes[i]) strides_[i] = stride;
  }
  bool defined() const { return data_ != nullptr; }
  int64_t dim() const { return int64_t(sizes_.size()); }
  int64_t ndimension() const { return dim(); }
  int64_t size(int64_t axis) const { return sizes_.at(axis < 0 ? axis + dim() : axis); }
  int64_t stride(int64_t axis) const { return strides_.at(axis < 0 ? axis + dim() : axis); }
  const IntArrayRef& sizes() const { return sizes_; }
  const IntArrayRef& strides() const { return strides_; }
  int64_t numel() const {
    int64_t total = 1;
    for (int64_t n : sizes_) total *= n;
    return total;
  }
  ScalarType scalar_type() const { return type_; }
  ScalarType dtype() const { return type_; }
  ScalarType type() const { return type_; }
  TensorOptions options() const { return TensorOptions(type_); }
  Device device() const { return {}; }
  int get_device() const { return 0; }
  bool is_cuda() const { return true; }
  std::size_t element_size() const { return emulator::bytes_of(name_of(type_)); }
  void* data_ptr() const { return data_; }
  template <class T> T* data_ptr() const {
    const std::string asked = emulator::Dtype<std::remove_cv_t<T>>::name;
    if (asked != "?" && asked != name_of(type_))
      emulator::stop(emulator::kUsage,
                     "a tensor of " + std::string(name_of(type_)) + " is read as " + asked + ".");
    return reinterpret_cast<T*>(data_);
  }
  template <class T> const T* const_data_ptr() const { return data_ptr<T>(); }
  template <class T> T* mutable_data_ptr() const { return data_ptr<T>(); }

  template <class T, int N, template <class> class Traits = RestrictPtrTraits>
  auto packed_accessor32() const {
    return PackedTensorAccessor<T, N, void, int>(data_ptr<T>(), sizes_.data(), strides_.data());
  }
  template <class T, int N, template <class> class Traits = RestrictPtrTraits>
  auto packed_accessor64() const {
    return PackedTensorAccessor<T, N, void, int64_t>(data_ptr<T>(), sizes_.data(),
                                                     strides_.data());
  }

  Tensor transpose(int64_t a, int64_t b) const {
    Tensor view = *this;
    std::swap(view.sizes_.at(a < 0 ? a + dim() : a), view.sizes_.at(b < 0 ? b + dim() : b));
    std::swap(view.strides_.at(a < 0 ? a + dim() : a), view.strides_.at(b < 0 ? b + dim() : b));
    return view;
  }
  bool is_contiguous() const { return strides_ == Tensor(data_, type_, sizes_).strides_; }
  Tensor contiguous() const;
  const Tensor& zero_() const {
    if (!is_contiguous()) emulator::stop(emulator::kUsage, "`zero_` is for whole tensors.");
    std::memset(data_, 0, element_size() * std::size_t(numel()));
    return *this;
  }
  Tensor view(IntArrayRef sizes) const {
    return Tensor(contiguous().data_, type_, whole(sizes, numel()));
  }
  Tensor reshape(IntArrayRef sizes) const { return view(sizes); }

 private:
  // Replaces one -1 by what is left.
  static IntArrayRef whole(IntArrayRef sizes, int64_t total) {
    int64_t known = 1;
    for (int64_t n : sizes) known *= n < 0 ? 1 : n;
    for (int64_t& n : sizes)
      if (n < 0) n = known ? total / known : 0;
    return sizes;
  }

  char* data_ = nullptr;
  ScalarType type_ = kFloat;
  IntArrayRef sizes_, strides_;
};

// New memory is filled with NaN.
inline Tensor empty(IntArrayRef sizes, TensorOptions options = {}) {
  std::size_t bytes = emulator::bytes_of(name_of(options.type));
  for (int64_t n : sizes) bytes *= std::size_t(n);
  void* data = nullptr;
  if (posix_memalign(&data, 256, bytes ? bytes : 1)) std::abort();
  return Tensor(std::memset(data, 0xff, bytes), options.type, sizes);
}
inline Tensor zeros(IntArrayRef sizes, TensorOptions options = {}) {
  Tensor tensor = empty(sizes, options);
  std::memset(tensor.data_ptr(), 0, tensor.element_size() * std::size_t(tensor.numel()));
  return tensor;
}
inline Tensor empty_like(const Tensor& x) { return empty(x.sizes(), x.options()); }
inline Tensor zeros_like(const Tensor& x) { return zeros(x.sizes(), x.options()); }
inline Tensor empty_like(const Tensor& x, TensorOptions y) { return empty(x.sizes(), y); }
inline Tensor zeros_like(const Tensor& x, TensorOptions y) { return zeros(x.sizes(), y); }

inline Tensor Tensor::contiguous() const {
  if (is_contiguous()) return *this;
  Tensor copy = empty(sizes_, options());
  std::size_t bytes = element_size();
  for (int64_t i = 0; i < numel(); i++) {
    int64_t rest = i, place = 0;
    for (int64_t axis = dim(); axis-- > 0; rest /= sizes_[axis])
      place += rest % sizes_[axis] * strides_[axis];
    std::memcpy(copy.data_ + i * int64_t(bytes), data_ + place * int64_t(bytes), bytes);
  }
  return copy;
}

struct DeviceGuard {
  template <class Where> explicit DeviceGuard(Where) {}
};

namespace cuda {
struct Stream {
  operator cudaStream_t() const { return nullptr; }
  cudaStream_t stream() const { return nullptr; }
};
inline Stream getCurrentCUDAStream(int = 0) { return {}; }
typedef DeviceGuard CUDAGuard;
typedef DeviceGuard OptionalCUDAGuard;
}  // namespace cuda

}  // namespace at

namespace torch {
using namespace at;
template <class T, int N, template <class> class Traits = RestrictPtrTraits>
using PackedTensorAccessor32 = at::PackedTensorAccessor<T, N, void, int>;
template <class T, int N, template <class> class Traits = RestrictPtrTraits>
using PackedTensorAccessor64 = at::PackedTensorAccessor<T, N, void, int64_t>;
inline TensorOptions dtype(ScalarType type) { return TensorOptions(type); }
}  // namespace torch
namespace c10 {
using at::ScalarType;
namespace cuda = at::cuda;
template <class T> using optional = std::optional<T>;
}  // namespace c10

#define TORCH_CHECK(condition, ...) \
  if (!(condition)) emulator::stop(emulator::kUsage, "TORCH_CHECK fails: " #condition ".")
#define AT_ASSERTM TORCH_CHECK
#define TORCH_EXTENSION_NAME extension
#define C10_CUDA_KERNEL_LAUNCH_CHECK()
#define C10_CUDA_CHECK(call) (void)(call)
#define AT_CUDA_CHECK(call) (void)(call)
// Bindings are never called.
#define PYBIND11_MODULE(name, module) template <class M> void emulator_bind_##name(M module)
#define TORCH_LIBRARY(name, module) template <class M> void emulator_library_##name(M module)

#define EMULATOR_CASE(tag, T, ...)  \
  case at::ScalarType::tag: {       \
    typedef T scalar_t;             \
    (__VA_ARGS__)();                \
    break;                          \
  }
#define EMULATOR_DISPATCH(type, name, ...)                                       \
  switch (type) {                                                                \
    __VA_ARGS__                                                                  \
    default: emulator::stop(emulator::kUsage, std::string(name) + " takes no " + \
                                                  at::name_of(type) + ".");      \
  }
#define AT_DISPATCH_FLOATING_TYPES(type, name, ...)                 \
  EMULATOR_DISPATCH(type, name, EMULATOR_CASE(Float, float, __VA_ARGS__) \
                    EMULATOR_CASE(Double, double, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(type, name, ...)        \
  EMULATOR_DISPATCH(type, name, EMULATOR_CASE(Float, float, __VA_ARGS__) \
                    EMULATOR_CASE(Double, double, __VA_ARGS__)      \
                    EMULATOR_CASE(Half, at::Half, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(A, B, type, name, ...)      \
  EMULATOR_DISPATCH(type, name, EMULATOR_CASE(Float, float, __VA_ARGS__) \
                    EMULATOR_CASE(Double, double, __VA_ARGS__)      \
                    EMULATOR_CASE(Half, at::Half, __VA_ARGS__)      \
                    EMULATOR_CASE(BFloat16, at::BFloat16, __VA_ARGS__))
