// The GEMM with Hopper's accumulators: a study, some 20 times slower than the GEMM itself. A thread
// holds kColumns columns of B in FP32 and walks the rows of A.
#include "kernels/cpu/gemm_hopper.h"

#include <fp8amp/parallel.h>

#include <algorithm>
#include <vector>

#include "kernels/element.h"

namespace fp8amp::kernels::cpu {
namespace {

using namespace numerics;

constexpr std::int64_t kColumns = 32;

// A code as the model reads it; what is not finite counts as 0 and is told.
struct Decoded {
  float value, exponent;
  bool finite;
};
struct DecodeTable {
  Decoded entry[2][256];
  DecodeTable() {
    const auto fill = [this](auto format, int row) {
      using F = decltype(format);
      for (int code = 0; code < 256; ++code) {
        const float value = decode<F>(static_cast<std::uint8_t>(code));
        entry[row][code] = {is_finite(value) ? value : 0.0f,
                            hopper_exponent<F>(static_cast<std::uint8_t>(code)), is_finite(value)};
      }
    };
    fill(E4M3{}, 0), fill(E5M2{}, 1);
  }
};
const Decoded* decode_table(DType type) {
  static const DecodeTable table;
  return table.entry[type == DType::kE5M2];
}

// Rows of A, or columns of B, side by side: element (k, j) at [k * width + j].
struct Operand {
  std::int64_t width;
  std::vector<float> value, exponent;
  std::vector<char> finite;  // of each row or column

  Operand(std::int64_t w, std::int64_t k)
      : width(w),
        value(static_cast<std::size_t>(w * k)),
        exponent(value.size()),
        finite(static_cast<std::size_t>(w)) {}
  void load(const std::uint8_t* codes, DType type, std::int64_t stride, std::int64_t k_stride,
            std::int64_t used, std::int64_t k) {
    const Decoded* table = decode_table(type);
    for (std::int64_t j = 0; j < used; ++j) {
      char all = 1;
      for (std::int64_t i = 0; i < k; ++i) {
        const Decoded& d = table[codes[j * stride + i * k_stride]];
        const auto at = static_cast<std::size_t>(i * width + j);
        value[at] = d.value, exponent[at] = d.exponent, all &= d.finite;
      }
      finite[static_cast<std::size_t>(j)] = all;
    }
  }
};

// One block of up to kHopperBlock products of a row of A with every column: c is the accumulator.
void add_block(const float* a, const float* a_exponent, const float* b, const float* b_exponent,
               std::int64_t count, float* c) {
  float top[kColumns], scale[kColumns];
  std::int32_t sum[kColumns];
  for (int j = 0; j < kColumns; ++j) top[j] = floor_power_of_two(bits_float(abs_bits(c[j])));
  for (std::int64_t k = 0; k < count; ++k)
    for (int j = 0; j < kColumns; ++j) {
      const float exponent = a_exponent[k] * b_exponent[k * kColumns + j];
      top[j] = exponent > top[j] ? exponent : top[j];
    }
  for (int j = 0; j < kColumns; ++j) {
    scale[j] = hopper_scale(top[j]);
    sum[j] = hopper_term(c[j], scale[j]);
  }
  for (std::int64_t k = 0; k < count; ++k)
    for (int j = 0; j < kColumns; ++j) sum[j] += hopper_term(a[k] * b[k * kColumns + j], scale[j]);
  for (int j = 0; j < kColumns; ++j) c[j] = hopper_sum(sum[j], top[j]);
}

void dot_products(const GemmArgs& g, const Operand& a, const Operand& b, float* result) {
  float c[kColumns] = {}, total[kColumns] = {};
  for (std::int64_t k = 0; k < g.k; k += kHopperBlock) {
    if (!g.fast_accumulation && k % kHopperChain == 0)
      for (int j = 0; j < kColumns; ++j) total[j] += c[j], c[j] = 0.0f;
    add_block(a.value.data() + k, a.exponent.data() + k, b.value.data() + k * kColumns,
              b.exponent.data() + k * kColumns, std::min<std::int64_t>(kHopperBlock, g.k - k), c);
  }
  for (int j = 0; j < kColumns; ++j) result[j] = total[j] + c[j];
}

// Where an operand is not finite: the FP32 chain of the GEMM.
float plain_dot(const GemmArgs& g, std::int64_t m, std::int64_t n) {
  float sum = 0.0f;
  for (std::int64_t k = 0; k < g.k; ++k)
    sum += load_element(g.a, g.a_type, m * g.a_row + k * g.a_k) *
           load_element(g.b, g.b_type, n * g.b_row + k * g.b_k);
  return sum;
}

void store(const GemmArgs& g, std::int64_t m, std::int64_t n, float sum) {
  const std::int64_t at = m * g.n + n;
  float d = sum * (g.a_scale_inv ? *g.a_scale_inv : 1.0f) * (g.b_scale_inv ? *g.b_scale_inv : 1.0f);
  if (g.bias) d = d + load_element(g.bias, g.bias_type, n);
  if (g.accumulate) d = load_element(g.d, g.d_type, at) + d;
  store_element(g.d, g.d_type, at, d);
}

void columns(const GemmArgs& g, std::int64_t n0) {
  const std::int64_t used = std::min(kColumns, g.n - n0);
  Operand b(kColumns, g.k), a(1, g.k);
  b.load(g.b + n0 * g.b_row, g.b_type, g.b_row, g.b_k, used, g.k);
  for (std::int64_t m = 0; m < g.m; ++m) {
    a.load(g.a + m * g.a_row, g.a_type, g.a_row, g.a_k, 1, g.k);
    float result[kColumns];
    dot_products(g, a, b, result);
    for (std::int64_t j = 0; j < used; ++j) {
      const bool finite = a.finite[0] && b.finite[static_cast<std::size_t>(j)];
      store(g, m, n0 + j, finite ? result[j] : plain_dot(g, m, n0 + j));
    }
  }
}

}  // namespace

void gemm_hopper(const GemmArgs& g) {
  parallel_for(0, (g.n + kColumns - 1) / kColumns, 1, [&](std::int64_t from, std::int64_t to) {
    for (; from < to; ++from) columns(g, from * kColumns);
  });
}

}  // namespace fp8amp::kernels::cpu
