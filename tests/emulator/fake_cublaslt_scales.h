// Types and scale modes of the fake cuBLASLt: rules and layouts of the cuBLAS documentation
// ("Element 1D and 128x128 2D Block Scaling for FP8 Data Types"), written out independently of the
// library's.
#pragma once
#include <cublasLt.h>
#include <fp8amp/dtype.h>

#include <cstdint>
#include <string>

#include "tests/emulator/fake_state.h"

namespace fake_cublaslt {

inline bool fp8(cudaDataType_t t) { return t == CUDA_R_8F_E4M3 || t == CUDA_R_8F_E5M2; }
inline std::int64_t bytes_of(cudaDataType_t t) { return t == CUDA_R_32F ? 4 : fp8(t) ? 1 : 2; }

inline fp8amp::DType dtype(cudaDataType_t t) {
  using fp8amp::DType;
  switch (t) {
    case CUDA_R_8F_E4M3: return DType::kE4M3;
    case CUDA_R_8F_E5M2: return DType::kE5M2;
    case CUDA_R_16BF: return DType::kBFloat16;
    case CUDA_R_16F: return DType::kFloat16;
    default: return DType::kFloat32;
  }
}

// ---- scale modes
inline constexpr int kScalar = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
                     kOuter = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
                     kVector = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                     kSquare = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;

inline std::int64_t blocks_of_128(std::int64_t n) { return (n + 127) / 128; }

struct Scales {  // of one operand: `outer` rows (M or N), k
  int mode;
  const float* data;
  std::int64_t outer, k;

  bool along_k() const { return mode == kVector || mode == kSquare; }
  std::int64_t leading_dimension() const {
    return mode == kVector ? outer : (blocks_of_128(k) + 3) / 4 * 4;
  }
  std::int64_t count() const {
    if (mode == kScalar) return 1;
    if (mode == kOuter) return outer;
    return leading_dimension() * blocks_of_128(mode == kVector ? k : outer);
  }
  float at(std::int64_t i, std::int64_t kk) const {
    if (!data) return 1.0f;
    if (mode == kScalar) return data[0];
    if (mode == kOuter) return data[i];
    return mode == kVector ? data[kk / 128 * leading_dimension() + i]
                           : data[i / 128 * leading_dimension() + kk / 128];
  }
};

// "" or why the pair cannot be had for a product of a.outer x b.outer.
inline std::string illegal_scales(const Scales& a, const Scales& b, bool fast_accumulation, int cc,
                                  std::size_t version, std::int64_t block_multiple) {
  if (a.mode == kScalar && b.mode == kScalar) return "";
  if (cc / 10 != 9) return "scale modes of Hopper";
  if (version < 120900) return "scale modes of cuBLASLt 12.9";
  if (a.mode == kOuter && b.mode == kOuter) return "";
  if (!a.along_k() || !b.along_k() || (a.mode == kSquare && b.mode == kSquare))
    return "pair of scale modes";
  if (a.outer % block_multiple || b.outer % block_multiple) return "M and N of block scales";
  return fast_accumulation ? "fast accumulation" : "";
}

inline std::string bad_scales(const Scales& s) {
  if (s.mode == kScalar) return "";
  if (!s.data || reinterpret_cast<std::uintptr_t>(s.data) % 16) return "scale pointer";
  return fake_cuda::check_range(s.data, std::size_t(s.count()) * 4) == cudaSuccess
             ? ""
             : "scales beyond their memory";
}

}  // namespace fake_cublaslt
