// torch tensors <-> fp8amp tensors, for the dispatcher ops. LibTorch stable ABI only.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <fp8amp/fp8amp.h>

#include <optional>
#include <string>
#include <vector>

namespace fp8amp::bindings {

using TorchTensor = torch::stable::Tensor;
using OptionalTensor = std::optional<torch::stable::Tensor>;
using torch::headeronly::ScalarType;

DType to_dtype(const char* op, const char* argument, ScalarType type);
ScalarType to_scalar_type(DType dtype);
Rounding to_rounding(const char* op, int64_t value);
ScaleRounding to_scale_rounding(const char* op, int64_t value);
Overflow to_overflow(const char* op, int64_t value);
Accumulation to_accumulation(const char* op, int64_t value);

int to_margin(int64_t value);  // what the core refuses as well if it does not fit an int

// The shape of a tensor that must have 2 dimensions.
std::vector<int64_t> matrix_shape(const char* op, const char* argument, const TorchTensor& t);

// Views; the tensor must be contiguous.
Tensor read(const char* op, const char* argument, const TorchTensor& t);
Tensor write(const char* op, const char* argument, const TorchTensor& t);
Tensor read(const char* op, const char* argument, const OptionalTensor& t);  // undefined for None
ScaledTensor read_scaled(const char* op, const char* argument, const TorchTensor& payload,
                         const OptionalTensor& scale_inv);
ScaledTensor write_scaled(const char* op, const char* argument, const TorchTensor& payload,
                          const TorchTensor& scale_inv);

// New contiguous tensor on the device of `like`. aoti_torch_empty_strided: the allocators of
// stable/ops.h cost 14-23 us a call on torch 2.11.
TorchTensor empty(const std::vector<int64_t>& shape, ScalarType type, const TorchTensor& like);
TorchTensor empty_scalar(const TorchTensor& like);  // float32[]
std::vector<int64_t> shape(const TorchTensor& t);

// Bytes of a GPU, from torch's allocator and for torch's current stream.
TorchTensor empty_bytes(std::size_t bytes, int device_index);

Device device(const TorchTensor& t);
Device device(const std::string& type, int64_t index);  // of a torch.device

int32_t torch_gpu();  // the number of the type of device that has this library's GPU tensors

// torch's current stream on the tensor's device; null on the CPU.
void* stream(const TorchTensor& t);
void* current_stream(int device_index);

}  // namespace fp8amp::bindings
