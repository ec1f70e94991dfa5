// What the tests of the CUDA GEMM share: operands in (fake) device memory, the CPU backend as the
// reference, and the comparison of bits.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "fp8amp/error.h"
#include "fp8amp/numerics/random.h"
#include "kernels/element.h"
#include "kernels/gemm.h"
#include "src/cuda/context.h"
#include "src/cuda/gemm_plan.h"
#include "tests/emulator/fake_cublaslt.h"
#include "tests/emulator/fake_runtime.h"

namespace fp8amp::gpu {

class DeviceBytes {  // `offset`: bytes between an address aligned to 256 and data()
 public:
  explicit DeviceBytes(std::int64_t bytes, std::int64_t offset = 0) : offset_(offset) {
    FP8AMP_CUDA_CHECK(cudaMalloc(&memory_, std::size_t(bytes + offset + 1)));
  }
  ~DeviceBytes() { (void)cudaFree(memory_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  std::uint8_t* data() const { return static_cast<std::uint8_t*>(memory_) + offset_; }

 private:
  void* memory_ = nullptr;
  std::int64_t offset_;
};

struct GemmCase {
  std::int64_t m = 16, n = 16, k = 16;
  bool transpose_a = false, transpose_b = true;
  DType a_type = DType::kE4M3, b_type = DType::kE4M3, d_type = DType::kBFloat16;
  bool with_bias = false;
  DType bias_type = DType::kFloat32;
  bool accumulate = false, fast_accumulation = false, specials = false;
  std::int64_t a_offset = 0, b_offset = 0, d_offset = 0, bias_offset = 0, scale_offset = 0;
  ScaleGranularity a_granularity = ScaleGranularity::kTensor,
                   b_granularity = ScaleGranularity::kTensor;
  bool odd_scales = true;  // else powers of two
};

inline std::string describe(const GemmCase& c) {
  std::string s = std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k);
  s += std::string(" ") + (c.transpose_a ? "T" : "N") + (c.transpose_b ? "T " : "N ");
  s += std::string(name(c.a_type)) + " x " + name(c.b_type) + " -> " + name(c.d_type);
  if (c.with_bias) s += std::string(" + ") + name(c.bias_type);
  return s + (c.accumulate ? " accumulated" : "");
}

class GemmRun {
 public:
  explicit GemmRun(const GemmCase& c)
      : c_(c),
        a_(c.m * c.k, c.a_offset),
        b_(c.k * c.n, c.b_offset),
        d_(c.m * c.n * size_in_bytes(c.d_type), c.d_offset),
        bias_(c.n * 4, c.bias_offset),
        a_scales_(scales(c.a_granularity, c.m, c.k) * 4, c.scale_offset),
        b_scales_(scales(c.b_granularity, c.n, c.k) * 4, c.scale_offset) {
    fill_codes(a_.data(), c.m * c.k, c.a_type, 1);
    fill_codes(b_.data(), c.k * c.n, c.b_type, 2);
    // multiples of 1/8 below 16: exact in every type
    for (std::int64_t i = 0; i < c.n; ++i)
      kernels::store_element(bias_.data(), c.bias_type, i,
                             float(numerics::random_word(3, std::uint32_t(i)) % 256) / 8 - 16);
    for (std::int64_t i = 0; i < c.m * c.n; ++i)
      kernels::store_element(d_.data(), c.d_type, i,
                             float(numerics::random_word(4, std::uint32_t(i)) % 1024) / 16 - 32);
    fill_scales(a_scales_, scales(c.a_granularity, c.m, c.k), 0.5f);
    fill_scales(b_scales_, scales(c.b_granularity, c.n, c.k), 1.37f);
    initial_.assign(d_.data(), d_.data() + bytes());
  }

  kernels::GemmArgs args(cudaStream_t stream = nullptr) const {
    kernels::GemmArgs g{};
    g.a = a_.data();
    g.a_type = c_.a_type;
    g.a_row = c_.transpose_a ? 1 : c_.k;
    g.a_k = c_.transpose_a ? c_.m : 1;
    g.b = b_.data();
    g.b_type = c_.b_type;
    g.b_row = c_.transpose_b ? c_.k : 1;
    g.b_k = c_.transpose_b ? 1 : c_.n;
    g.a_scale_inv = reinterpret_cast<const float*>(a_scales_.data());
    g.b_scale_inv = reinterpret_cast<const float*>(b_scales_.data());
    g.a_granularity = c_.a_granularity;
    g.b_granularity = c_.b_granularity;
    g.d = d_.data();
    g.d_type = c_.d_type;
    g.bias = c_.with_bias ? bias_.data() : nullptr;
    g.bias_type = c_.bias_type;
    g.m = c_.m;
    g.n = c_.n;
    g.k = c_.k;
    g.accumulate = c_.accumulate;
    g.fast_accumulation = c_.fast_accumulation;
    g.stream = stream;
    return g;
  }

  std::vector<std::uint8_t> expected(kernels::GemmArgs g) const {
    std::vector<std::uint8_t> d = initial_;
    g.d = d.data();
    kernels::cpu::gemm(g);
    return d;
  }

  // Elements of D that are not the reference's bits (any NaN equals any other).
  std::int64_t differences(const kernels::GemmArgs& g, float tolerance = 0) const {
    const std::vector<std::uint8_t> reference = expected(g);
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < c_.m * c_.n; ++i) {
      const float x = kernels::load_element(reference.data(), c_.d_type, i),
                  y = kernels::load_element(d_.data(), c_.d_type, i);
      const bool equal = std::memcmp(&x, &y, sizeof x) == 0 || (std::isnan(x) && std::isnan(y));
      if (!equal && !(std::abs(x - y) <= tolerance)) ++count;
    }
    return count;
  }

  void restore() { std::memcpy(d_.data(), initial_.data(), initial_.size()); }
  std::uint8_t* bias() const { return bias_.data(); }
  void set_scale(float a_scale_inv) const {
    *reinterpret_cast<float*>(a_scales_.data()) = a_scale_inv;
  }
  std::int64_t bytes() const { return c_.m * c_.n * size_in_bytes(c_.d_type); }

 private:
  void fill_codes(std::uint8_t* codes, std::int64_t n, DType type, std::uint32_t key) const {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t word = numerics::random_word(key, std::uint32_t(i));
      codes[i] = std::uint8_t(word);
      const bool special = (codes[i] & 0x7f) >= (type == DType::kE5M2 ? 0x7c : 0x7f);
      if (special && !(c_.specials && (word >> 8) % 16 == 0)) codes[i] ^= 0x55;
    }
  }

  static std::int64_t scales(ScaleGranularity granularity, std::int64_t rows, std::int64_t k) {
    return numerics::scale_layout(granularity, rows, k).size;
  }
  // The first one is `first`, the others lie around it.
  void fill_scales(const DeviceBytes& bytes, std::int64_t n, float first) const {
    auto* scale = reinterpret_cast<float*>(bytes.data());
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t word = numerics::random_word(5, std::uint32_t(i));
      scale[i] = std::ldexp(c_.odd_scales ? first : 1.0f, i ? int(word % 5) - 2 : 0);
      if (c_.odd_scales && i) scale[i] *= 1.0f + float(word >> 20) / 8192.0f;
    }
  }

  GemmCase c_;
  DeviceBytes a_, b_, d_, bias_, a_scales_, b_scales_;
  std::vector<std::uint8_t> initial_;
};

// A machine of one compute capability, fake runtime and fake cuBLASLt.
class FakeGpu {
 public:
  explicit FakeGpu(int compute_capability)
      : machine_(compute_capability), context_(fake_cublaslt::table(), compute_capability) {}

 private:
  struct Machine {
    explicit Machine(int compute_capability) {
      fake_cuda::Machine machine;
      machine.major = compute_capability / 10;
      machine.minor = compute_capability % 10;
      fake_cuda::reset(machine);
      fake_cublaslt::reset(compute_capability);
    }
  };
  Machine machine_;
  ContextOverride context_;
};

}  // namespace fp8amp::gpu
