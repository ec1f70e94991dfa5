// Norms and activations with a cast: the public functions against quantize() of an FP32 result and
// against FP64, bad input.
#include <fp8amp/fused.h>
#include <fp8amp/numerics/normalize.h>
#include <fp8amp/parallel.h>

#include <cmath>
#include <cstring>

#include "bad_input.h"
#include "scalar_loops.h"

namespace fp8amp::test {
namespace {

using namespace numerics;

Tensor random_tensor(std::vector<std::int64_t> shape, std::uint64_t seed, double shift = 0.0,
                     DType dtype = DType::kFloat32) {
  const Tensor t = tensor(std::move(shape), dtype);
  Xorshift next(seed);
  for (std::int64_t i = 0; i < t.numel(); ++i)
    store_element(t.mutable_data(), dtype, i, float(6.0 * next.uniform() - 3.0 + shift));
  return t;
}
float at(const Tensor& t, std::int64_t i) { return load_element(t.data(), t.dtype(), i); }

void expect_equal(const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.shape(), b.shape());
  ASSERT_EQ(std::memcmp(a.data(), b.data(), std::size_t(a.nbytes())), 0);
}

// `fused` casts what `result` holds, with every source of the scale, for any number of threads.
using Fused = std::function<void(const ScaledTensor&, const Tensor&, const QuantizeOptions&)>;
void expect_quantized(const Tensor& result, const Fused& fused, Overflow overflow) {
  const auto& shape = result.shape();
  for (int source = 0; source < 3; ++source)
    for (bool transpose : {false, true})
      for (int threads : {1, 4}) {
        set_num_threads(threads);
        const ScaledTensor out = scaled(shape), want = scaled(shape);
        const Tensor t = tensor({shape[1], shape[0]}, DType::kE4M3),
                     want_t = tensor({shape[1], shape[0]}, DType::kE4M3), amax = tensor({}),
                     want_amax = tensor({}), history = allocate_history(2),
                     want_history = allocate_history(2);
        QuantizeOptions options{.overflow = overflow};
        if (source == 1) options.scale = scalar(31.0f);
        QuantizeOptions want_options = options;
        if (source == 2) options.history = history, want_options.history = want_history;
        options.amax = amax;
        want_options.amax = want_amax;
        fused(out, transpose ? t : Tensor(), options);
        quantize_transpose(result, want, want_t, want_options);
        expect_equal(out.payload(), want.payload());
        if (transpose) expect_equal(t, want_t);
        expect_equal(out.scale_inv(), want.scale_inv());
        expect_equal(amax, want_amax);
        expect_equal(history, want_history);
      }
}

double layer_norm_oracle(const Tensor& x, std::int64_t row, std::int64_t i, double eps) {
  const std::int64_t n = x.size(1);
  double mean = 0, square = 0;
  for (std::int64_t k = 0; k < n; ++k) mean += at(x, row * n + k) / double(n);
  for (std::int64_t k = 0; k < n; ++k)
    square += (at(x, row * n + k) - mean) * (at(x, row * n + k) - mean) / double(n);
  return (at(x, row * n + i) - mean) / std::sqrt(square + eps);
}

TEST(Fused, LayerNorm) {
  for (double shift : {0.0, 500.0})
    for (const auto& [rows, cols] : {std::pair{70, 96}, {3, 1000}, {1, 1}}) {
      const Tensor x = random_tensor({rows, cols}, 1, shift), gamma = random_tensor({cols}, 2),
                   beta = random_tensor({cols}, 3), mean = tensor({rows}), rstd = tensor({rows}),
                   y = tensor({rows, cols});
      const Fused fused = [&](const ScaledTensor& out, const Tensor& t, const QuantizeOptions& o) {
        layer_norm_quantize(x, gamma, beta, 1e-5f, out, mean, rstd, t, o);
      };
      fused(scaled({rows, cols}), {}, {});
      for (std::int64_t i = 0; i < x.numel(); ++i) {
        const std::int64_t row = i / cols, c = i % cols;
        y.mutable_data_as<float>()[i] =
            (at(x, i) - at(mean, row)) * at(rstd, row) * at(gamma, c) + at(beta, c);
        ASSERT_NEAR(at(y, i), layer_norm_oracle(x, row, c, 1e-5) * at(gamma, c) + at(beta, c),
                    1e-6 * (10.0 + shift))
            << i;
      }
      expect_quantized(y, fused, Overflow::kSaturate);
    }
}

TEST(Fused, RmsNorm) {
  const Tensor x = random_tensor({5, 200}, 1, 1.0), gamma = random_tensor({200}, 2),
               rstd = tensor({5}), y = tensor({5, 200});
  const Fused fused = [&](const ScaledTensor& out, const Tensor& t, const QuantizeOptions& o) {
    rms_norm_quantize(x, gamma, 1e-6f, out, rstd, t, o);
  };
  fused(scaled({5, 200}), {}, {});
  for (std::int64_t row = 0; row < 5; ++row) {
    double square = 0;
    for (std::int64_t c = 0; c < 200; ++c) square += std::pow(at(x, row * 200 + c), 2) / 200;
    EXPECT_NEAR(at(rstd, row), 1 / std::sqrt(square + 1e-6), 1e-6);
    for (std::int64_t i = row * 200; i < (row + 1) * 200; ++i)
      y.mutable_data_as<float>()[i] = at(x, i) * at(rstd, row) * at(gamma, i % 200);
  }
  expect_quantized(y, fused, Overflow::kSaturate);
}

TEST(Fused, Activations) {
  const Tensor x = random_tensor({70, 80}, 1, 0.0, DType::kBFloat16),
               dy = random_tensor({70, 80}, 2, 0.0, DType::kBFloat16),
               dz = random_tensor({70, 40}, 3, 0.0, DType::kBFloat16), y = tensor({70, 80}),
               z = tensor({70, 40});
  auto* values = y.mutable_data_as<float>();
  for (GeluForm form : {GeluForm::kErf, GeluForm::kTanh}) {
    for (std::int64_t i = 0; i < 5600; ++i) values[i] = gelu(at(x, i), form);
    expect_quantized(
        y, [&](auto& out, auto& t, auto& o) { gelu_quantize(x, form, out, t, o); },
        Overflow::kSaturate);
    for (std::int64_t i = 0; i < 5600; ++i) values[i] = at(dy, i) * gelu_derivative(at(x, i), form);
    expect_quantized(
        y, [&](auto& out, auto& t, auto& o) { gelu_backward_quantize(dy, x, form, out, t, o); },
        Overflow::kNaN);
  }
  for (std::int64_t i = 0; i < 2800; ++i) {
    const std::int64_t gate = i / 40 * 80 + i % 40, up = gate + 40;
    z.mutable_data_as<float>()[i] = silu(at(x, gate)) * at(x, up);
    values[gate] = at(dz, i) * at(x, up) * silu_derivative(at(x, gate));
    values[up] = at(dz, i) * silu(at(x, gate));
  }
  expect_quantized(
      z, [&](auto& out, auto& t, auto& o) { swiglu_quantize(x, out, t, o); }, Overflow::kSaturate);
  expect_quantized(
      y, [&](auto& out, auto& t, auto& o) { swiglu_backward_quantize(dz, x, out, t, o); },
      Overflow::kNaN);
}

// Inf becomes NaN in a gradient, whatever the options say.
TEST(Fused, OverflowOfGradients) {
  const Tensor x = tensor({2, 2}), dy = tensor({2, 2}), flag = scalar(0.0f);
  for (int i = 0; i < 4; ++i) x.mutable_data_as<float>()[i] = 1.0f;
  dy.mutable_data_as<float>()[1] = INFINITY;
  const ScaledTensor dx = scaled({2, 2}, DType::kE5M2);
  gelu_backward_quantize(dy, x, GeluForm::kErf, dx, {}, {.found_inf = flag});
  EXPECT_EQ(dx.payload().data_as<std::uint8_t>()[1], E5M2::kNaNCode);
  EXPECT_EQ(at(flag, 0), 1.0f);
  gelu_quantize(dy, GeluForm::kErf, dx);
  EXPECT_EQ(dx.payload().data_as<std::uint8_t>()[1], E5M2::kMaxCode);
}

// Against the derivative of the oracle by central differences.
TEST(Fused, NormBackwardAgainstDifferences) {
  constexpr std::int64_t kRows = 40, kCols = 33;
  const Tensor x = random_tensor({kRows, kCols}, 1, 2.0), dy = random_tensor({kRows, kCols}, 2),
               gamma = random_tensor({kCols}, 3), mean = tensor({kRows}), rstd = tensor({kRows}),
               dx = tensor({kRows, kCols}), dgamma = tensor({kCols}), dbeta = tensor({kCols});
  layer_norm_quantize(x, gamma, {}, 1e-5f, scaled({kRows, kCols}), mean, rstd);
  layer_norm_backward(dy, x, mean, rstd, gamma, dx, dgamma, dbeta);
  for (std::int64_t c = 0; c < kCols; ++c) {
    double want_gamma = 0, want_beta = 0;
    for (std::int64_t row = 0; row < kRows; ++row) {
      want_gamma += at(dy, row * kCols + c) * layer_norm_oracle(x, row, c, 1e-5);
      want_beta += at(dy, row * kCols + c);
    }
    EXPECT_NEAR(at(dgamma, c), want_gamma, 1e-4);
    EXPECT_NEAR(at(dbeta, c), want_beta, 1e-4);
  }
  const auto loss = [&](std::int64_t row) {
    double sum = 0;
    for (std::int64_t c = 0; c < kCols; ++c)
      sum += at(dy, row * kCols + c) * at(gamma, c) * layer_norm_oracle(x, row, c, 1e-5);
    return sum;
  };
  for (std::int64_t row : {0, 39})
    for (std::int64_t c = 0; c < kCols; ++c) {
      float& value = x.mutable_data_as<float>()[row * kCols + c];
      const float kept = value, high = kept + 1e-2f, low = kept - 1e-2f;
      value = high;
      double slope = loss(row);
      value = low;
      slope = (slope - loss(row)) / (double(high) - double(low));
      value = kept;
      EXPECT_NEAR(at(dx, row * kCols + c), slope, 1e-3);
    }
}

TEST(Fused, SumsOverRowsDoNotDependOnThreads) {
  const Tensor x = random_tensor({1100, 24}, 1), dy = random_tensor({1100, 24}, 2),
               gamma = random_tensor({24}, 3), rstd = random_tensor({1100}, 4),
               dx = tensor({1100, 24});
  const Tensor want = tensor({24});
  const auto h = [&](std::int64_t i) { return at(x, i) * at(rstd, i / 24); };
  for (std::int64_t c = 0; c < 24; ++c) {
    std::vector<float> sums(1100), next;
    for (std::int64_t row = 0; row < 1100; ++row)
      sums[std::size_t(row)] = at(dy, row * 24 + c) * h(row * 24 + c);
    for (; sums.size() > 1; sums = std::move(next)) {
      next.assign((sums.size() + 31) / 32, 0.0f);
      for (std::size_t i = 0; i < sums.size(); ++i) next[i / 32] += sums[i];
    }
    want.mutable_data_as<float>()[c] = sums[0];
  }
  for (int threads : {1, 2, 7}) {
    set_num_threads(threads);
    const Tensor dgamma = tensor({24});
    rms_norm_backward(dy, x, rstd, gamma, dx, dgamma);
    expect_equal(dgamma, want);
  }
}

TEST(Fused, BadInput) {
  const Tensor x = tensor({4, 8}), gamma = tensor({8}), rows = tensor({4}), row2 = tensor({4});
  const ScaledTensor out = scaled({4, 8});
  const auto norm = [&](const Tensor& x_, const Tensor& gamma_, float eps, const ScaledTensor& out_,
                        const Tensor& mean, const Tensor& rstd) {
    return [=] { layer_norm_quantize(x_, gamma_, {}, eps, out_, mean, rstd); };
  };
  expect_error(norm(tensor({4}), gamma, 0, out, rows, row2), {"layer_norm_quantize", "x", "2 dim"});
  expect_error(norm(tensor({4, 0}), tensor({0}), 0, scaled({4, 0}), rows, row2),
               {"x", "one column", "[4, 0]"});
  expect_error(norm(tensor({4, 8}, DType::kE4M3), gamma, 0, out, rows, row2), {"x", "float8_e4m3"});
  expect_error(norm(x, tensor({9}), 0, out, rows, row2), {"gamma", "[8]", "[9]"});
  expect_error(norm(x, gamma, -1.0f, out, rows, row2), {"eps", ">= 0", "-1"});
  expect_error(norm(x, gamma, NAN, out, rows, row2), {"eps", "nan"});
  expect_error(norm(x, gamma, 0, scaled({4, 8}, DType::kFloat16), rows, row2), {"out", "float16"});
  expect_error(norm(x, gamma, 0, scaled({8, 4}), rows, row2), {"out", "[4, 8]", "[8, 4]"});
  expect_error(norm(x, gamma, 0, out, tensor({8}), row2), {"mean", "[4]", "[8]"});
  expect_error(norm(x, gamma, 0, out, rows, rows), {"rstd", "overlap"});
  expect_error([&] { rms_norm_quantize(x, gamma, 0, out, Tensor()); }, {"rms_norm", "rstd"});
  expect_error(
      [&] { gelu_quantize(x, GeluForm::kErf, out, {}, {.rounding = Rounding::kStochastic}); },
      {"gelu_quantize", "rounding", "nearest"});
  expect_error(
      [&] {
        gelu_quantize(x, GeluForm::kErf, out, tensor({4, 8}, DType::kE4M3));
      },
      {"transposed", "[8, 4]"});
  expect_error([&] { gelu_quantize(x, GeluForm::kErf, out, {}, {.column_sums = gamma}); },
               {"gelu_quantize", "column_sums", "undefined", "float32[8]"});
  expect_error([&] { gelu_quantize(x, GeluForm::kErf, out, {}, {.margin = 99}); },
               {"margin", "99"});
  expect_error([&] { swiglu_quantize(tensor({4, 7}), out); }, {"swiglu", "even", "[4, 7]"});
  expect_error([&] { swiglu_quantize(x, out); }, {"out", "[4, 4]"});
  expect_error(
      [&] {
        gelu_backward_quantize(tensor({4, 8}, DType::kFloat16), x, GeluForm::kErf, out);
      },
      {"gelu_backward", "dy", "float16"});
  expect_error([&] { swiglu_backward_quantize(x, x, out); }, {"dy", "[4, 4]", "[4, 8]"});
  expect_error([&] { layer_norm_backward(x, x, rows, row2, gamma, x, tensor({8}), {}); },
               {"layer_norm_backward", "dx", "overlap"});
  expect_error(
      [&] {
        rms_norm_backward(x, x, rows, gamma, tensor({4, 8}), gamma);
      },
      {"rms_norm_backward", "dgamma", "overlap", "gamma"});
}

}  // namespace
}  // namespace fp8amp::test
