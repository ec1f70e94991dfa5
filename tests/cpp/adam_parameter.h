// One parameter with gradient and states in any storage types, for the tests of Adam.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/adam.h"
#include "kernels/element.h"

namespace fp8amp::test {

struct AdamTypes {
  DType p, g, m, v;
};
inline constexpr AdamTypes kO1{DType::kFloat16, DType::kE4M3, DType::kFloat32, DType::kFloat32};
inline constexpr AdamTypes kO2{DType::kFloat16, DType::kE4M3, DType::kE4M3, DType::kFloat16};
inline constexpr AdamTypes kFloats{DType::kFloat32, DType::kFloat32, DType::kFloat32,
                                   DType::kFloat32};
// O2 states with nothing else rounded: what an emulation of the states alone sees.
inline constexpr AdamTypes kO2States{DType::kFloat32, DType::kFloat32, DType::kE4M3,
                                     DType::kFloat16};

// Codes of `type` under one scale; plain float32 where type is kFloat32.
struct Stored {
  DType type = DType::kFloat32;
  float scale_inv = 1.0f;
  std::vector<std::uint8_t> bytes;

  Stored(DType t, std::size_t n) : type(t), bytes(n * static_cast<std::size_t>(size_in_bytes(t))) {}
  std::int64_t size() const {
    return static_cast<std::int64_t>(bytes.size()) / size_in_bytes(type);
  }
  float* scale_pointer() { return type == DType::kFloat32 ? nullptr : &scale_inv; }
  float operator[](std::int64_t i) const {
    return kernels::load_element(bytes.data(), type, i) * scale_inv;
  }
  float amax() const {
    std::uint32_t max = 0;
    for (std::int64_t i = 0; i < size(); ++i) max = std::max(max, numerics::abs_bits((*this)[i]));
    return numerics::bits_float(max);
  }
  void assign(const std::vector<float>& x) {
    if (type == DType::kFloat32) {
      if (!x.empty()) std::memcpy(bytes.data(), x.data(), bytes.size());
      return;
    }
    float amax = 0;
    for (float v : x) amax = std::max(amax, std::fabs(v));
    const float scale = numerics::compute_scale(amax, format_max(type), ScaleRounding::kPowerOfTwo);
    for (std::size_t i = 0; i < x.size(); ++i)
      kernels::store_code(bytes.data(), type, static_cast<std::int64_t>(i), x[i], scale,
                          Rounding::kNearest, Overflow::kNaN, 0);
    scale_inv = numerics::inverse_scale(scale);
  }
};

struct AdamParameterData {
  Stored p, g, m, v;
  float amax[4] = {};
  float step = 0;
  std::uint32_t id = 0;
  Stored weight{DType::kE4M3, 0};  // that is computed with; empty: none

  AdamParameterData(AdamTypes t, const std::vector<float>& values)
      : p(t.p, values.size()), g(t.g, values.size()), m(t.m, values.size()), v(t.v, values.size()) {
    p.assign(values);
    amax[0] = p.amax();
  }
  kernels::AdamTensor tensor() {
    kernels::AdamTensor t = without_weight();
    if (!weight.bytes.empty())
      t.w_type = weight.type, t.w = weight.bytes.data(), t.w_scale_inv = &weight.scale_inv;
    return t;
  }
  kernels::AdamTensor without_weight() {
    return {p.bytes.data(),
            g.bytes.data(),
            m.bytes.data(),
            v.bytes.data(),
            p.type,
            g.type,
            m.type,
            v.type,
            p.scale_pointer(),
            g.scale_pointer(),
            m.scale_pointer(),
            v.scale_pointer(),
            amax,
            &step,
            p.size(),
            id};
  }
};

inline kernels::AdamArgs default_args() {
  kernels::AdamArgs args{};
  args.m_rounding = Rounding::kStochastic;
  args.seed = 1234;
  return args;
}

// grad_amax and adam on one parameter; the gradient is cast to its type first.
inline void adam_step(AdamParameterData& x, const std::vector<float>& grad,
                      kernels::AdamArgs args = default_args()) {
  x.g.assign(grad);
  const kernels::AdamTensor tensor = x.tensor();
  float found_inf = 0;
  args.tensors = {&tensor, 1};
  args.found_inf = &found_inf;
  kernels::cpu::grad_amax(args, &found_inf);
  kernels::cpu::adam(args);
}

}  // namespace fp8amp::test
