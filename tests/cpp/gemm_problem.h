// What the tests of the CPU GEMM share: cases, operands between unreadable pages, and the scalar
// chain that defines the result. All comparisons are of bits; any NaN equals any other.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "fp8amp/numerics/random.h"
#include "kernels/cpu/isa/loops.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu {

// Bytes that end where an unreadable page begins: a read past an operand stops the test.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::int64_t n) {
    const std::size_t page = sysconf(_SC_PAGESIZE), pages = (n + page - 1) / page;
    size_ = (pages + 2) * page;
    base_ = static_cast<std::uint8_t*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED) std::abort();
    mprotect(base_, page, PROT_NONE);
    mprotect(base_ + (pages + 1) * page, page, PROT_NONE);
    data_ = base_ + (pages + 1) * page - n;
  }
  ~GuardedBytes() { munmap(base_, size_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  std::uint8_t* data() const { return data_; }

 private:
  std::uint8_t *base_, *data_;
  std::size_t size_;
};

struct Size {
  std::int64_t m, n, k;
};

enum class Values { kFinite, kSpecial };  // kSpecial: some NaN, in E5M2 some Inf too

inline bool is_special(std::uint8_t code, bool e5m2) {
  return (code & 0x7f) >= (e5m2 ? 0x7c : 0x7f);
}

struct GemmCase {
  std::int64_t m = 1, n = 1, k = 1;
  bool transpose_a = false, transpose_b = false, a_e5m2 = false, b_e5m2 = false;
  DType d_type = DType::kFloat32;
  bool with_bias = false;
  DType bias_type = DType::kFloat32;
  bool accumulate = false;
  float a_scale_inv = 0.5f, b_scale_inv = 1.37f;
  Values values = Values::kFinite;
};

inline std::string describe(const GemmCase& c) {
  return std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) +
         " transpose " + std::to_string(c.transpose_a) + std::to_string(c.transpose_b) + " e5m2 " +
         std::to_string(c.a_e5m2) + std::to_string(c.b_e5m2) + " d " +
         std::to_string(static_cast<int>(c.d_type)) + " bias " + std::to_string(c.with_bias) + " " +
         std::to_string(static_cast<int>(c.bias_type)) + " accumulate " +
         std::to_string(c.accumulate);
}

// A case with its operands, and D between canaries: kPad elements before and after and row_pad at
// the end of each row.
class GemmProblem {
 public:
  static constexpr std::int64_t kPad = 5;

  explicit GemmProblem(const GemmCase& c, std::int64_t row_pad = kPad)
      : c_(c), row_(c.n + row_pad), a_(c.m * c.k), b_(c.k * c.n), bias_(c.n * 4) {
    fill_codes(a_.data(), c.m * c.k, c.a_e5m2, 1);
    fill_codes(b_.data(), c.k * c.n, c.b_e5m2, 2);
    for (std::int64_t i = 0; i < c.n; ++i)
      store_element(bias_.data() + c.n * (4 - size_in_bytes(c.bias_type)), c.bias_type, i,
                    number(3, i));
    d_.resize((c.m * row_ + 2 * kPad) * size_in_bytes(c.d_type));
    for (std::int64_t i = 0; i < c.m * row_ + 2 * kPad; ++i)
      store_element(d_.data(), c.d_type, i, number(4, i));
  }

  std::vector<std::uint8_t>& d() { return d_; }

  GemmLoop loop() {
    GemmLoop l{};
    l.a = a_.data();
    l.b = b_.data();
    l.a_e5m2 = c_.a_e5m2;
    l.b_e5m2 = c_.b_e5m2;
    l.a_row = c_.transpose_a ? 1 : c_.k;
    l.a_k = c_.transpose_a ? c_.m : 1;
    l.b_row = c_.transpose_b ? c_.k : 1;
    l.b_k = c_.transpose_b ? 1 : c_.n;
    l.a_scales.scale_inv = &c_.a_scale_inv;
    l.b_scales.scale_inv = &c_.b_scale_inv;
    l.d = d_.data() + kPad * size_in_bytes(c_.d_type);
    l.d_type = c_.d_type;
    l.d_row = row_;
    l.bias = c_.with_bias ? bias_.data() + c_.n * (4 - size_in_bytes(c_.bias_type)) : nullptr;
    l.bias_type = c_.bias_type;
    l.m1 = c_.m;
    l.n1 = c_.n;
    l.k = c_.k;
    l.accumulate = c_.accumulate;
    return l;
  }

 private:
  static float number(std::uint32_t key, std::int64_t i) {
    return (static_cast<float>(numerics::random_word(key, i) >> 8) - 0x1p23f) * 0x1p-17f;
  }

  void fill_codes(std::uint8_t* codes, std::int64_t n, bool e5m2, std::uint32_t key) const {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t word = numerics::random_word(key, i);
      codes[i] = static_cast<std::uint8_t>(word);
      // seldom enough that whole rows and columns stay finite
      if (is_special(codes[i], e5m2) && !(c_.values == Values::kSpecial && (word >> 8) % 16 == 0))
        codes[i] ^= 0x55;
    }
  }

  GemmCase c_;
  std::int64_t row_;
  GuardedBytes a_, b_, bias_;
  std::vector<std::uint8_t> d_;
};

// The definition, element by element.
inline void scalar_chain(const GemmLoop& l) {
  const DType a_type = l.a_e5m2 ? DType::kE5M2 : DType::kE4M3,
              b_type = l.b_e5m2 ? DType::kE5M2 : DType::kE4M3;
  std::vector<float> a(l.k), b(l.k * (l.n1 - l.n0));
  for (std::int64_t n = l.n0; n < l.n1; ++n)
    for (std::int64_t k = 0; k < l.k; ++k)
      b[(n - l.n0) * l.k + k] = load_element(l.b, b_type, n * l.b_row + k * l.b_k);
  for (std::int64_t m = l.m0; m < l.m1; ++m) {
    for (std::int64_t k = 0; k < l.k; ++k)
      a[k] = load_element(l.a, a_type, m * l.a_row + k * l.a_k);
    for (std::int64_t n = l.n0; n < l.n1; ++n) {
      float sum = 0.0f;
      for (std::int64_t k = 0; k < l.k; ++k) sum = sum + a[k] * b[(n - l.n0) * l.k + k];
      float d = sum * *l.a_scales.scale_inv * *l.b_scales.scale_inv;
      if (l.bias) d = d + load_element(l.bias, l.bias_type, n);
      if (l.accumulate) d = load_element(l.d, l.d_type, m * l.d_row + n) + d;
      store_element(l.d, l.d_type, m * l.d_row + n, d);
    }
  }
}

// Number of elements that differ; adds the non-finite ones to `special`.
inline std::int64_t differences(const std::vector<std::uint8_t>& x,
                                const std::vector<std::uint8_t>& y, DType type,
                                std::int64_t* special = nullptr) {
  const int size = size_in_bytes(type);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < x.size() / size; ++i) {
    const float u = load_element(x.data(), type, i), v = load_element(y.data(), type, i);
    if (special && !std::isfinite(u)) ++*special;
    if (std::memcmp(&x[i * size], &y[i * size], size) != 0 && !(std::isnan(u) && std::isnan(v)))
      ++count;
  }
  return count;
}

}  // namespace fp8amp::kernels::cpu
