#include "python/bindings/ops/convert.h"

#include <algorithm>

namespace fp8amp::bindings {
namespace {

[[noreturn]] void fail(const char* op, const char* argument, const std::string& wanted,
                       const std::string& seen) {
  throw Error(std::string(op) + ": " + argument + " must " + wanted + ", got " + seen);
}

template <class Enum>
Enum to_enum(const char* op, const char* argument, int64_t value) {
  if (value != 0 && value != 1) fail(op, argument, "be 0 or 1", std::to_string(value));
  return static_cast<Enum>(value);
}

void require_contiguous(const char* op, const char* argument, const TorchTensor& t) {
  if (!t.is_contiguous()) fail(op, argument, "be contiguous", "other strides");
}

}  // namespace

DType to_dtype(const char* op, const char* argument, ScalarType type) {
  switch (type) {
    case ScalarType::Float: return DType::kFloat32;
    case ScalarType::Half: return DType::kFloat16;
    case ScalarType::BFloat16: return DType::kBFloat16;
    case ScalarType::Float8_e4m3fn: return DType::kE4M3;
    case ScalarType::Float8_e5m2: return DType::kE5M2;
    default:
      fail(op, argument, "be float32, float16, bfloat16, float8_e4m3fn or float8_e5m2",
           std::string("dtype number ") + std::to_string(static_cast<int>(type)));
  }
}

ScalarType to_scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return ScalarType::Half;
    case DType::kBFloat16: return ScalarType::BFloat16;
    case DType::kE4M3: return ScalarType::Float8_e4m3fn;
    case DType::kE5M2: return ScalarType::Float8_e5m2;
    default: return ScalarType::Float;
  }
}

Rounding to_rounding(const char* op, int64_t value) {
  return to_enum<Rounding>(op, "rounding", value);
}
ScaleRounding to_scale_rounding(const char* op, int64_t value) {
  return to_enum<ScaleRounding>(op, "scale_rounding", value);
}
Overflow to_overflow(const char* op, int64_t value) {
  return to_enum<Overflow>(op, "overflow", value);
}
Accumulation to_accumulation(const char* op, int64_t value) {
  return to_enum<Accumulation>(op, "accumulation", value);
}

int to_margin(int64_t value) { return static_cast<int>(std::clamp<int64_t>(value, -1000, 1000)); }

std::vector<int64_t> shape(const TorchTensor& t) {
  const auto sizes = t.sizes();
  return {sizes.begin(), sizes.end()};
}

std::vector<int64_t> matrix_shape(const char* op, const char* argument, const TorchTensor& t) {
  if (t.dim() != 2) fail(op, argument, "have 2 dimensions", std::to_string(t.dim()));
  return shape(t);
}

Tensor read(const char* op, const char* argument, const TorchTensor& t) {
  require_contiguous(op, argument, t);
  return Tensor::view(t.const_data_ptr(), to_dtype(op, argument, t.scalar_type()), shape(t),
                      device(t));
}

Tensor write(const char* op, const char* argument, const TorchTensor& t) {
  require_contiguous(op, argument, t);
  return Tensor::view(t.mutable_data_ptr(), to_dtype(op, argument, t.scalar_type()), shape(t),
                      device(t));
}

Tensor read(const char* op, const char* argument, const OptionalTensor& t) {
  return t ? read(op, argument, *t) : Tensor();
}

ScaledTensor read_scaled(const char* op, const char* argument, const TorchTensor& payload,
                         const OptionalTensor& scale_inv) {
  return {read(op, argument, payload),
          read(op, (std::string(argument) + "_scale_inv").c_str(), scale_inv)};
}

ScaledTensor write_scaled(const char* op, const char* argument, const TorchTensor& payload,
                          const TorchTensor& scale_inv) {
  return {write(op, argument, payload),
          write(op, (std::string(argument) + "_scale_inv").c_str(), scale_inv)};
}

namespace {
// The stable ABI numbers dtypes as the running torch does; float8 numbers are fixed since 2.1.
TorchTensor allocate(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
                     ScalarType type, int32_t device_type, int32_t device_index) {
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(shape.size()), shape.data(),
                                                  strides.data(), static_cast<int32_t>(type),
                                                  device_type, device_index, &handle));
  return TorchTensor(handle);
}
}  // namespace

TorchTensor empty(const std::vector<int64_t>& shape, ScalarType type, const TorchTensor& like) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0; stride *= std::max<int64_t>(shape[i], 1))
    strides[i] = stride;
  if (like.is_cuda())
    return allocate(shape, strides, type, aoti_torch_device_type_cuda(), like.get_device_index());
  return allocate(shape, strides, type, aoti_torch_device_type_cpu(), 0);
}

TorchTensor empty_bytes(std::size_t bytes, int device_index) {
  return allocate({static_cast<int64_t>(bytes)}, {1}, ScalarType::Byte, torch_gpu(), device_index);
}

TorchTensor empty_scalar(const TorchTensor& like) { return empty({}, ScalarType::Float, like); }

}  // namespace fp8amp::bindings
