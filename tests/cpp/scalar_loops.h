// The definitions of the CPU loops: one element at a time, straight from numerics/. What the vector
// loops are compared with.
#pragma once
#include "kernels/cpu/isa.h"
#include "kernels/element.h"
#include "kernels/quantize.h"
#include "tests/cpp/settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace fp8amp::test {

using namespace fp8amp::kernels;
using kernels::cpu::Isa;

inline std::uint32_t scalar_cast(const cpu::CastLoop& l) {
  std::uint32_t max = 0;
  for (std::int64_t i = 0; i < l.n; ++i) {
    float value = load_element(l.x, l.x_type, i);
    if (l.has_x_scale_inv) value = value * l.x_scale_inv;
    max = numerics::max_bits(max, numerics::abs_bits(value));
    const bool stochastic = l.rounding == Rounding::kStochastic;
    const std::uint32_t random =
        stochastic ? numerics::random_bits(l.key, l.first + std::uint64_t(i)) : 0;
    store_code(l.y, l.format, i, value, l.scale, l.rounding, l.overflow, random);
  }
  return max;
}

inline void scalar_dequantize(const cpu::DequantizeLoop& l) {
  for (std::int64_t i = 0; i < l.n; ++i) {
    float value = load_element(l.x, l.x_type, i);
    if (l.has_scale_inv) value = value * l.scale_inv;
    store_element(l.y, l.y_type, i, value);
  }
}

inline std::uint32_t scalar_accumulate(const cpu::AccumulateLoop& l) {
  std::uint32_t max = 0;
  for (std::int64_t i = 0; i < l.n; ++i) {
    const float value = load_element(l.sum, l.format, i) * l.sum_scale_inv +
                        load_element(l.x, l.x_type, i) * l.x_scale_inv;
    max = numerics::max_bits(max, numerics::abs_bits(value));
    const std::uint32_t random = numerics::random_bits(l.key, l.first + std::uint64_t(i));
    if (l.measure)
      *l.checksum += std::min(numerics::abs_bits(value), kNaNBits);
    else
      store_code(l.sum, l.format, i, value, l.scale, Rounding::kStochastic, Overflow::kNaN, random);
  }
  return max;
}

inline std::uint32_t scalar_amax(const void* x, DType type, std::int64_t n) {
  std::uint32_t max = 0;
  for (std::int64_t i = 0; i < n; ++i)
    max = numerics::max_bits(max, numerics::abs_bits(load_element(x, type, i)));
  return max;
}

inline double scalar_sum_of_squares(const void* x, DType type, std::int64_t n) {
  double part[8] = {}, sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double value = load_element(x, type, i);
    part[i % 8] += value * value;
  }
  for (double p : part) sum += p;
  return sum;
}

inline const DType kAllTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kE4M3,
                                  DType::kE5M2};
inline const DType kFormats[] = {DType::kE4M3, DType::kE5M2, DType::kFloat16};
inline const DType kPlainTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
inline const Rounding kRoundings[] = {Rounding::kNearest, Rounding::kStochastic};
inline const Overflow kOverflows[] = {Overflow::kSaturate, Overflow::kNaN};

inline std::vector<Isa> levels() {
  std::vector<Isa> r;
  for (Isa isa : {Isa::kBaseline, Isa::kV2, Isa::kV3, Isa::kV4})
    if ((isa == Isa::kBaseline) == (cpu::detect_isa() == Isa::kBaseline) &&
        isa <= cpu::detect_isa())
      r.push_back(isa);
  return r;
}
inline std::string level_name(const testing::TestParamInfo<Isa>& info) {
  return cpu::name(info.param);
}

// Small, fast, and not the generator under test.
class Xorshift {
 public:
  explicit Xorshift(std::uint64_t seed) : s_(seed * 0x9e3779b97f4a7c15ull + 1) {}
  std::uint32_t operator()() {
    s_ ^= s_ << 13;
    s_ ^= s_ >> 7;
    s_ ^= s_ << 17;
    return std::uint32_t(s_ >> 32);
  }
  double uniform() { return ((*this)() + 0.5) / 4294967296.0; }  // in (0, 1)

 private:
  std::uint64_t s_;
};

// A NaN made quiet: whether arithmetic quiets a signalling one is the compiler's choice.
template <class Bits>
Bits quiet(Bits bits, Bits infinity, Bits quiet_bit) {
  return Bits(bits & Bits(~Bits(0)) >> 1) > infinity ? Bits(bits | quiet_bit) : bits;
}

// Any bit pattern of the type, NaN, Inf and subnormals among them; every eighth is an ordinary
// number of about 1.
inline void fill_random(void* x, DType type, std::int64_t n, std::uint64_t seed) {
  Xorshift next(seed);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t r = next();
    if (type == DType::kFloat32)
      static_cast<std::uint32_t*>(x)[i] =
          r % 8 == 0 ? 0x3f000000u | r >> 8 : quiet(r, 0x7f800000u, 0x00400000u);
    else if (type == DType::kFloat16)
      static_cast<std::uint16_t*>(x)[i] = quiet<std::uint16_t>(std::uint16_t(r), 0x7c00, 0x0200);
    else if (type == DType::kBFloat16)
      static_cast<std::uint16_t*>(x)[i] = quiet<std::uint16_t>(std::uint16_t(r), 0x7f80, 0x0040);
    else
      static_cast<std::uint8_t*>(x)[i] = std::uint8_t(r >> 11);
  }
}

}  // namespace fp8amp::test
