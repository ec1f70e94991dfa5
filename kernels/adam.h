// Adam over a list of tensors: arguments and the two backends.
#pragma once
#include <fp8amp/dtype.h>
#include <fp8amp/numerics/adam_update.h>

#include <cstdint>
#include <span>

namespace fp8amp::kernels {

struct AdamTensor {
  void* p;
  const void* g;
  void* m;
  void* v;
  DType p_type, g_type, m_type, v_type;
  float* p_scale_inv;  // null where the tensor is plain (scale 1)
  const float* g_scale_inv;
  float* m_scale_inv;
  float* v_scale_inv;
  float* amax;  // float[4]: p, m, v, g
  float* step;
  std::int64_t n;
  std::uint32_t id;
  DType w_type = DType::kE4M3;
  void* w = nullptr;  // compute weight: the new p, cast once more; null: none
  float* w_scale_inv = nullptr;
};

struct AdamArgs {
  std::span<const AdamTensor> tensors;
  numerics::AdamHyperparameters hyper;
  const float* lr;  // takes the place of hyper.lr unless null
  Rounding p_rounding, m_rounding, v_rounding;
  std::uint64_t seed;
  const float* grad_scale;  // may be null
  const float* found_inf;   // may be null; adam() alone
  void* stream;
};

// The random streams of one tensor, `purpose` of numerics::random_key: of the first the first
// moment takes the first draw and the master weight the second.
inline constexpr std::uint32_t kAdamStream = 0, kSecondMomentStream = 1;

// grad_amax: amax[3] of every tensor, and *found_inf = 1 if any of their gradients, times
// grad_scale, is non-finite, else 0. adam: one step, unless *found_inf is not 0 or any amax[3] *
// |grad_scale| is non-finite.
namespace cpu {
void grad_amax(const AdamArgs& args, float* found_inf);
void adam(const AdamArgs& args);
}  // namespace cpu
namespace cuda {
void grad_amax(const AdamArgs& args, float* found_inf);
void adam(const AdamArgs& args);
}  // namespace cuda

}  // namespace fp8amp::kernels
