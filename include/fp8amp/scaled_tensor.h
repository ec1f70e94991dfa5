// ScaledTensor: payload * scale_inv. The payload is E4M3, E5M2 or FP16; scale_inv is one FP32
// number on the payload's device. A plain FP32/BF16/FP16 tensor is a ScaledTensor without scale_inv
// (1).
#pragma once
#include <fp8amp/tensor.h>

#include <utility>

namespace fp8amp {

class ScaledTensor {
 public:
  ScaledTensor() = default;  // undefined
  ScaledTensor(Tensor plain)
      : payload_(std::move(plain)) {}  // NOLINT: a plain tensor is one with scale 1
  ScaledTensor(Tensor payload, Tensor scale_inv)
      : payload_(std::move(payload)), scale_inv_(std::move(scale_inv)) {}

  // Payload of zeros and scale_inv 1.
  FP8AMP_API static ScaledTensor allocate(std::vector<std::int64_t> shape, DType format,
                                          Device device = kCpu);

  bool defined() const { return payload_.defined(); }
  bool scaled() const { return scale_inv_.defined(); }
  const Tensor& payload() const { return payload_; }
  const Tensor& scale_inv() const { return scale_inv_; }  // float32[], undefined for a plain tensor
  DType dtype() const { return payload_.dtype(); }
  Device device() const { return payload_.device(); }
  const std::vector<std::int64_t>& shape() const { return payload_.shape(); }
  std::int64_t numel() const { return payload_.numel(); }

 private:
  Tensor payload_, scale_inv_;
};

}  // namespace fp8amp
