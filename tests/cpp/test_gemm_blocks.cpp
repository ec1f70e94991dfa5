// FP8 GEMM with a scale for each row or block on the CPU: every instruction-set level and number of
// threads against the definition, bit for bit; and the public door.
#include <fp8amp/fp8amp.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/gemm.h"
#include "tests/cpp/gemm_problem.h"
#include "tests/cpp/settings.h"

namespace fp8amp::kernels::cpu {
namespace {

constexpr ScaleGranularity kAll[] = {ScaleGranularity::kTensor, ScaleGranularity::kRow,
                                     ScaleGranularity::kBlock1x128,
                                     ScaleGranularity::kBlock128x128};

// The layouts of cuBLASLt, written out.
std::int64_t scale_at(ScaleGranularity g, std::int64_t rows, std::int64_t k_size, std::int64_t row,
                      std::int64_t k) {
  switch (g) {
    case ScaleGranularity::kTensor: return 0;
    case ScaleGranularity::kRow: return row;
    case ScaleGranularity::kBlock1x128: return k / 128 * rows + row;
    default: return row / 128 * (((k_size + 127) / 128 + 3) / 4 * 4) + k / 128;
  }
}

std::vector<float> random_scales(ScaleGranularity g, std::int64_t rows, std::int64_t k,
                                 std::uint32_t key) {
  std::vector<float> scales(std::size_t(numerics::scale_layout(g, rows, k).size));
  for (std::size_t i = 0; i < scales.size(); ++i)
    scales[i] = std::ldexp(1.0f + float(numerics::random_word(key, i) % 1000) / 1000.0f,
                           int(numerics::random_word(key + 1, i) % 9) - 4);
  return scales;
}

struct Problem {
  GemmCase c;
  ScaleGranularity a_granularity, b_granularity;
};

// Runs `multiply` on a problem and counts the elements that are not the definition's.
template <class Multiply>
std::int64_t run(const Problem& p, const Multiply& multiply) {
  const GemmCase& c = p.c;
  GemmProblem problem(c, 0);
  const GemmLoop shape = problem.loop();
  const auto a_scales = random_scales(p.a_granularity, c.m, c.k, 11),
             b_scales = random_scales(p.b_granularity, c.n, c.k, 13);
  GemmArgs args{};
  args.a = shape.a;
  args.a_type = c.a_e5m2 ? DType::kE5M2 : DType::kE4M3;
  args.a_row = shape.a_row;
  args.a_k = shape.a_k;
  args.a_scale_inv = a_scales.data();
  args.a_granularity = p.a_granularity;
  args.b = shape.b;
  args.b_type = c.b_e5m2 ? DType::kE5M2 : DType::kE4M3;
  args.b_row = shape.b_row;
  args.b_k = shape.b_k;
  args.b_scale_inv = b_scales.data();
  args.b_granularity = p.b_granularity;
  args.d = shape.d;
  args.d_type = c.d_type;
  args.bias = shape.bias;
  args.bias_type = c.bias_type;
  args.m = c.m;
  args.n = c.n;
  args.k = c.k;
  args.accumulate = c.accumulate;
  const std::vector<std::uint8_t> before = problem.d();
  const bool pieces = p.a_granularity >= ScaleGranularity::kBlock1x128 ||
                      p.b_granularity >= ScaleGranularity::kBlock1x128;
  const std::int64_t width = pieces ? 128 : std::max<std::int64_t>(c.k, 1);
  for (std::int64_t m = 0; m < c.m; ++m)
    for (std::int64_t n = 0; n < c.n; ++n) {
      float total = 0.0f;
      for (std::int64_t k0 = 0; k0 == 0 || k0 < c.k; k0 += width) {
        float sum = 0.0f;
        for (std::int64_t k = k0; k < std::min(c.k, k0 + width); ++k)
          sum = sum + load_element(args.a, args.a_type, m * args.a_row + k * args.a_k) *
                          load_element(args.b, args.b_type, n * args.b_row + k * args.b_k);
        sum = c.k ? sum * a_scales[scale_at(p.a_granularity, c.m, c.k, m, k0)] *
                        b_scales[scale_at(p.b_granularity, c.n, c.k, n, k0)]
                  : sum;
        total = k0 ? total + sum : sum;
      }
      if (args.bias) total = total + load_element(args.bias, args.bias_type, n);
      if (c.accumulate) total = load_element(args.d, args.d_type, m * c.n + n) + total;
      store_element(args.d, args.d_type, m * c.n + n, total);
    }
  const std::vector<std::uint8_t> expected = problem.d();
  problem.d() = before;
  multiply(args);
  return differences(expected, problem.d(), c.d_type);
}

// The whole product by one level.
void multiply_at(Isa isa, const GemmArgs& a) {
  GemmLoop l{};
  l.a = a.a;
  l.b = a.b;
  l.a_e5m2 = a.a_type == DType::kE5M2;
  l.b_e5m2 = a.b_type == DType::kE5M2;
  l.a_row = a.a_row;
  l.a_k = a.a_k;
  l.b_row = a.b_row;
  l.b_k = a.b_k;
  l.a_scales = {a.a_scale_inv, numerics::scale_layout(a.a_granularity, a.m, a.k)};
  l.b_scales = {a.b_scale_inv, numerics::scale_layout(a.b_granularity, a.n, a.k)};
  l.scales_along_k =
      numerics::scales_along_k(a.a_granularity) || numerics::scales_along_k(a.b_granularity);
  l.d = a.d;
  l.d_type = a.d_type;
  l.d_row = a.n;
  l.bias = a.bias;
  l.bias_type = a.bias_type;
  l.m1 = a.m;
  l.n1 = a.n;
  l.k = a.k;
  l.accumulate = a.accumulate;
  loops(isa).gemm(l);
}

template <class Body>
void for_problems(const Body& body) {
  constexpr Size kSizes[] = {{1, 1, 1},      {3, 5, 127},   {17, 33, 128},  {13, 70, 129},
                             {129, 31, 256}, {14, 32, 384}, {40, 131, 1000}};
  int next = 0;
  for (ScaleGranularity a : kAll)
    for (ScaleGranularity b : kAll)
      for (const Size& s : kSizes) {
        Problem p{{}, a, b};
        p.c.m = s.m;
        p.c.n = s.n;
        p.c.k = s.k;
        p.c.transpose_b = true;
        p.c.d_type = next % 3 == 0   ? DType::kFloat32
                     : next % 3 == 1 ? DType::kBFloat16
                                     : DType::kFloat16;
        p.c.with_bias = next % 2;
        p.c.accumulate = next % 5 == 2;
        p.c.a_e5m2 = next % 4 == 3;
        p.c.values = next++ % 7 == 6 ? Values::kSpecial : Values::kFinite;
        body(p);
      }
}

std::string describe(const Problem& p) {
  return describe(p.c) + ", a has " + name(p.a_granularity) + ", b " + name(p.b_granularity);
}

TEST(GemmBlocks, EveryLevelEqualsTheDefinition) {
  const Isa best = detect_isa();
  for (Isa isa : {Isa::kBaseline, Isa::kV2, Isa::kV3, Isa::kV4}) {
    if (isa > best || (best != Isa::kBaseline && isa == Isa::kBaseline)) continue;
    for_problems([&](const Problem& p) {
      EXPECT_EQ(run(p, [&](const GemmArgs& a) { multiply_at(isa, a); }), 0)
          << name(isa) << " " << describe(p);
    });
  }
}

TEST(GemmBlocks, EveryNumberOfThreadsEqualsTheDefinition) {
  for (int threads : {3, 1}) {
    for_problems([&](const Problem& p) {
      set_num_threads(threads);
      EXPECT_EQ(run(p, [](const GemmArgs& a) { gemm(a); }), 0) << describe(p);
    });
    if (test::quick()) break;
  }
}

TEST(GemmBlocks, EmptyContraction) {
  for (ScaleGranularity a : kAll) {
    Problem p{{}, a, ScaleGranularity::kRow};
    p.c.m = 5;
    p.c.n = 40;
    p.c.k = 0;
    p.c.with_bias = true;
    EXPECT_EQ(run(p, [](const GemmArgs& g) { gemm(g); }), 0) << describe(p);
  }
}

// ---- the public door
std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

Tensor ramp(std::int64_t rows, std::int64_t cols) {
  Tensor x = Tensor::allocate({rows, cols}, DType::kFloat32);
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.mutable_data_as<float>()[i] = float(i % 17 - 8) * float(1 + i / cols % 4);
  return x;
}

TEST(GemmBlocksApi, QuantizeMultiplyAndDequantize) {
  const std::int64_t m = 20, n = 30, k = 150;
  const Tensor x = ramp(m, k), w = ramp(k, n);
  const auto xq = ScaledTensor::allocate({m, k}, DType::kE4M3, kCpu, ScaleGranularity::kBlock1x128);
  const auto wt =
      ScaledTensor::allocate({n, k}, DType::kE4M3, kCpu, ScaleGranularity::kBlock128x128);
  const Tensor found_inf = Tensor::allocate({}, DType::kFloat32);
  quantize_blocks(x, xq, {}, {.found_inf = found_inf});
  quantize_blocks(w, {}, wt);
  EXPECT_EQ(*found_inf.data_as<float>(), 0.0f);
  const Tensor y = Tensor::allocate({m, n}, DType::kFloat32);
  gemm(Gemm::kFprop, xq, wt, y);
  const Tensor xd = Tensor::allocate({m, k}, DType::kFloat32),
               wd = Tensor::allocate({n, k}, DType::kFloat32);
  dequantize(xq, xd);
  dequantize(wt, wd);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double exact = 0, size = 0;
      for (std::int64_t p = 0; p < k; ++p) {
        const double product =
            double(xd.data_as<float>()[i * k + p]) * wd.data_as<float>()[j * k + p];
        exact += product;
        size += std::abs(product);
      }
      EXPECT_NEAR(y.data_as<float>()[i * n + j], exact, 1e-5 * size);
    }
}

TEST(GemmBlocksApi, BadArguments) {
  using enum ScaleGranularity;
  const Tensor x = ramp(20, 150), y = Tensor::allocate({20, 30}, DType::kFloat32);
  const auto make = [](std::vector<std::int64_t> shape, ScaleGranularity g,
                       DType format = DType::kE4M3) {
    return ScaledTensor::allocate(std::move(shape), format, kCpu, g);
  };
  const auto xq = make({20, 150}, kBlock1x128), w = make({30, 150}, kBlock128x128);
  EXPECT_EQ(message([&] { quantize_blocks(x, {}, {}); }),
            "quantize_blocks: out must be a tensor, got an undefined one");
  EXPECT_EQ(
      message([&] {
        quantize_blocks(x, make({20, 150}, kTensor));
      }),
      "quantize_blocks: out must have a scale for each row or block, got a scale for the tensor");
  EXPECT_EQ(message([&] {
              quantize_blocks(x, make({150, 20}, kRow));
            }),
            "quantize_blocks: out must have shape [20, 150], got [150, 20]");
  EXPECT_EQ(message([&] {
              quantize_blocks(x, {}, make({20, 150}, kRow));
            }),
            "quantize_blocks: transposed must have shape [150, 20], got [20, 150]");
  EXPECT_EQ(
      message([&] {
        quantize_blocks(x, xq, make({150, 20}, kRow));
      }),
      "quantize_blocks: transposed must have, as out, a scale for each 1x128 piece, got a scale "
      "for each row");
  EXPECT_EQ(message([&] {
              quantize_blocks(x, xq, make({150, 20}, kBlock1x128, DType::kE5M2));
            }),
            "quantize_blocks: transposed must be float8_e4m3, got float8_e5m2");
  EXPECT_EQ(message([&] { quantize_blocks(xq, xq); }),
            "quantize_blocks: x must be one of float32, float16, bfloat16, got float8_e4m3");
  EXPECT_EQ(message([&] { quantize_blocks(x, xq, {}, {.margin = 65}); }),
            "quantize_blocks: margin must be between -64 and 64, got 65");
  const ScaledTensor wrong(xq.payload(), Tensor::allocate({20, 2}, DType::kFloat32), kBlock1x128);
  EXPECT_EQ(message([&] { quantize_blocks(x, wrong); }),
            "quantize_blocks: out.scale_inv must have shape [2, 20], got [20, 2]");
  EXPECT_EQ(
      message([&] { gemm(xq, w, y, {}); }),
      "gemm: b must be stored with the contraction along its rows, got the other layout with a "
      "scale for each 128x128 block");
  EXPECT_EQ(message([&] {
              gemm(xq, w, y, {.transpose_b = true, .accumulation = Accumulation::kHopper});
            }),
            "gemm: accumulation must be default with a scale for each 1x128 piece, got hopper");
  EXPECT_EQ(message([&] { gemm(wrong, w, y, {.transpose_b = true}); }),
            "gemm: a.scale_inv must have shape [2, 20], got [20, 2]");
  EXPECT_EQ(message([&] {
              quantize(xq, make({20, 150}, kTensor));
            }),
            "quantize: x must have one scale, got a scale for each 1x128 piece");
  EXPECT_EQ(message([&] { dequantize(xq, y); }),
            "dequantize: out must have shape [20, 150], got [20, 30]");
  EXPECT_EQ(message([&] { scale_inv_shape(kRow, {3}); }),
            "scale_inv_shape: shape must have 2 dimensions, got [3]");
}

}  // namespace
}  // namespace fp8amp::kernels::cpu
