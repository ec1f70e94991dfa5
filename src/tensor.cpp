// Tensor, ScaledTensor and dtypes.
#include "fp8amp/tensor.h"

#include <algorithm>
#include <cfloat>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "fp8amp/error.h"
#include "fp8amp/recipe.h"
#include "fp8amp/scaled_tensor.h"
#include "src/check.h"

namespace fp8amp {

float format_max(DType dtype) {
  switch (dtype) {
    case DType::kE4M3: return numerics::E4M3::kMax;
    case DType::kE5M2: return numerics::E5M2::kMax;
    case DType::kFloat16: return numerics::Fp16::kMax;
    case DType::kBFloat16: return 0x1.fep127f;
    case DType::kFloat32: return FLT_MAX;
  }
  return 0.0f;
}

const char* name(DType dtype) {
  switch (dtype) {
    case DType::kE4M3: return "float8_e4m3";
    case DType::kE5M2: return "float8_e5m2";
    case DType::kFloat16: return "float16";
    case DType::kBFloat16: return "bfloat16";
    case DType::kFloat32: return "float32";
  }
  return "unknown";
}

namespace {

std::int64_t count(const std::vector<std::int64_t>& shape) {
  for (std::int64_t s : shape)
    if (s < 0) check::fail("Tensor", "shape", "have no negative size", check::to_string(shape));
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t n = 1;
  for (std::int64_t s : shape) {
    if (n > std::numeric_limits<std::int64_t>::max() / 8 / s)
      check::fail("Tensor", "shape", "fit in memory", check::to_string(shape));
    n *= s;
  }
  return n;
}

}  // namespace

Tensor Tensor::view(void* data, DType dtype, std::vector<std::int64_t> shape, Device device) {
  Tensor t;
  t.numel_ = count(shape);
  if (!data && t.numel_ != 0)
    check::fail("Tensor::view", "data", "point to the elements", "nullptr");
  if (reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(size_in_bytes(dtype)) !=
      0)
    check::fail("Tensor::view", "data", std::string("be aligned for ") + name(dtype),
                "an unaligned pointer");
  t.data_ = data;
  t.shape_ = std::move(shape);
  t.dtype_ = dtype;
  t.device_ = device;
  t.defined_ = true;
  return t;
}

Tensor Tensor::view(const void* data, DType dtype, std::vector<std::int64_t> shape, Device device) {
  Tensor t = view(const_cast<void*>(data), dtype, std::move(shape), device);
  t.read_only_ = true;
  return t;
}

Tensor Tensor::allocate(std::vector<std::int64_t> shape, DType dtype, Device device) {
  if (device.type != DeviceType::kCpu)
    throw Error(
        "Tensor::allocate: device must be the CPU, got cuda: take the memory from your allocator "
        "and use Tensor::view");
  const std::int64_t bytes = count(shape) * size_in_bytes(dtype),
                     rounded = (bytes + 63) / 64 * 64 + 64;
  void* memory = std::aligned_alloc(64, static_cast<std::size_t>(rounded));
  if (!memory)
    throw Error("Tensor::allocate: out of memory for " + std::to_string(bytes) + " bytes");
  std::memset(memory, 0, static_cast<std::size_t>(rounded));
  Tensor t = view(memory, dtype, std::move(shape), device);
  t.owner_ = std::shared_ptr<void>(memory, std::free);
  return t;
}

std::int64_t Tensor::size(std::int64_t i) const {
  if (i < 0 || i >= dim())
    check::fail("Tensor::size", "i", "be a dimension of " + to_string(), std::to_string(i));
  return shape_[static_cast<std::size_t>(i)];
}

void* Tensor::mutable_data() const {
  if (read_only_) throw Error("Tensor: a read-only view cannot be written: " + to_string());
  return data_;
}

std::string Tensor::to_string() const {
  if (!defined_) return "undefined";
  return std::string(name(dtype_)) + check::to_string(shape_) + " on " + check::to_string(device_);
}

ScaledTensor ScaledTensor::allocate(std::vector<std::int64_t> shape, DType format, Device device,
                                    ScaleGranularity granularity) {
  if (!is_float8(format) && (format != DType::kFloat16 || granularity != ScaleGranularity::kTensor))
    check::fail("ScaledTensor::allocate", "format",
                granularity == ScaleGranularity::kTensor ? "be float8 or float16" : "be float8",
                name(format));
  Tensor scale_inv = Tensor::allocate(scale_inv_shape(granularity, shape), DType::kFloat32, device);
  std::fill_n(scale_inv.mutable_data_as<float>(), scale_inv.numel(), 1.0f);
  return {Tensor::allocate(std::move(shape), format, device), std::move(scale_inv), granularity};
}

std::vector<std::int64_t> scale_inv_shape(ScaleGranularity granularity,
                                          const std::vector<std::int64_t>& shape) {
  if (granularity == ScaleGranularity::kTensor) return {};
  if (shape.size() != 2)
    check::fail("scale_inv_shape", "shape", "have 2 dimensions", check::to_string(shape));
  const numerics::ScaleLayout layout = numerics::scale_layout(granularity, shape[0], shape[1]);
  switch (granularity) {
    case ScaleGranularity::kRow: return {shape[0]};
    case ScaleGranularity::kBlock1x128: return {numerics::scale_blocks(shape[1]), shape[0]};
    default: return {numerics::scale_blocks(shape[0]), layout.row_stride};
  }
}

Tensor allocate_history(std::int64_t history, Device device) {
  if (history < 1 || history > std::numeric_limits<std::int64_t>::max() - 2)
    check::fail("allocate_history", "history", "be >= 1 and fit in memory",
                std::to_string(history));
  return Tensor::allocate({history + 2}, DType::kFloat32, device);
}

}  // namespace fp8amp
