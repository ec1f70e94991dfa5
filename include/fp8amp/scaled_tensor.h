// ScaledTensor: payload * scale_inv. The payload is E4M3, E5M2 or FP16; scale_inv is one FP32
// number on the payload's device. A plain FP32/BF16/FP16 tensor is a ScaledTensor without scale_inv
// (1). An FP8 matrix may have a scale for each row or block instead, see granularity().
#pragma once
#include <fp8amp/numerics/scale_layout.h>
#include <fp8amp/tensor.h>

#include <utility>

namespace fp8amp {

class ScaledTensor {
 public:
  ScaledTensor() = default;  // undefined
  ScaledTensor(Tensor plain)
      : payload_(std::move(plain)) {}  // NOLINT: a plain tensor is one with scale 1
  ScaledTensor(Tensor payload, Tensor scale_inv,
               ScaleGranularity granularity = ScaleGranularity::kTensor)
      : payload_(std::move(payload)), scale_inv_(std::move(scale_inv)), granularity_(granularity) {}

  // Payload of zeros and scales of 1. format: float8 or float16; with a scale for each row or block
  // float8, and a 2-D shape.
  FP8AMP_API static ScaledTensor allocate(std::vector<std::int64_t> shape, DType format,
                                          Device device = kCpu,
                                          ScaleGranularity granularity = ScaleGranularity::kTensor);

  bool defined() const { return payload_.defined(); }
  bool scaled() const { return scale_inv_.defined(); }
  const Tensor& payload() const { return payload_; }
  // float32, undefined for a plain tensor; of scale_inv_shape(granularity(), payload's shape)
  const Tensor& scale_inv() const { return scale_inv_; }
  ScaleGranularity granularity() const { return granularity_; }
  DType dtype() const { return payload_.dtype(); }
  Device device() const { return payload_.device(); }
  const std::vector<std::int64_t>& shape() const { return payload_.shape(); }
  std::int64_t numel() const { return payload_.numel(); }

 private:
  Tensor payload_, scale_inv_;
  ScaleGranularity granularity_ = ScaleGranularity::kTensor;
};

// Shape of the scales of an FP8 tensor [rows, k]: [], [rows], [ceil(k / 128), rows] or
// [ceil(rows / 128), 4 ceil(k / 512)]; numerics/scale_layout.h has the layouts. Throws Error where
// `shape` is not 2-D and granularity not kTensor.
FP8AMP_API std::vector<std::int64_t> scale_inv_shape(ScaleGranularity granularity,
                                                     const std::vector<std::int64_t>& shape);

// "a scale for the tensor", "... each row", "... each 1x128 piece", "... each 128x128 block"
FP8AMP_API const char* name(ScaleGranularity granularity);

}  // namespace fp8amp
