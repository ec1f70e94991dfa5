// Norms and activations with a cast: the row loops of every level against scalar definitions.
// FP8AMP_TEST_QUICK=1: fewer values; FP8AMP_TEST_EXHAUSTIVE=1: all 2^32 floats.
#include <fp8amp/numerics/activation.h>
#include <fp8amp/numerics/normalize.h>

#include <cmath>
#include <cstring>

#include "edge_array.h"
#include "scalar_loops.h"
#include "settings.h"

namespace fp8amp::test {
namespace {

using namespace numerics;
using kernels::FusedOp;

const std::int64_t kLengths[] = {1, 3, 8, 17, 33, 64, 511, 512, 513, 1000, 1040};
constexpr FusedOp kOps[] = {FusedOp::kNorm, FusedOp::kGelu, FusedOp::kSwiGlu,
                            FusedOp::kGeluBackward, FusedOp::kSwiGluBackward};

// ---- scalar definitions
template <class Term>
float scalar_row_sum(std::int64_t n, const Term& term) {
  float part[32][16] = {}, row[32];
  for (std::int64_t i = 0; i < n; ++i) part[i % 512 / 16][i % 16] += term(i);
  for (int r = 0; r < 32; ++r) {
    for (int half : {8, 4, 2, 1})
      for (int j = 0; j < half; ++j) part[r][j] += part[r][j + half];
    row[r] = part[r][0];
  }
  for (int half : {16, 8, 4, 2, 1})
    for (int j = 0; j < half; ++j) row[j] += row[j + half];
  return row[0];
}

void scalar_row(const cpu::FusedRow& l) {
  for (std::int64_t i = 0; i < l.n; ++i) switch (l.op) {
      case FusedOp::kNorm:
        l.y[i] = (l.x[i] - l.mean) * l.rstd * l.gamma[i];
        if (l.beta) l.y[i] += l.beta[i];
        break;
      case FusedOp::kGelu: l.y[i] = gelu(l.x[i], l.form); break;
      case FusedOp::kSwiGlu: l.y[i] = silu(l.x[i]) * l.x[l.n + i]; break;
      case FusedOp::kGeluBackward: l.y[i] = l.dy[i] * gelu_derivative(l.x[i], l.form); break;
      case FusedOp::kSwiGluBackward:
        l.y[i] = l.dy[i] * l.x[l.n + i] * silu_derivative(l.x[i]);
        l.y[l.n + i] = l.dy[i] * silu(l.x[i]);
        break;
    }
}

void expect_same(const float* a, const float* b, std::int64_t n, const std::string& what) {
  for (std::int64_t i = 0; i < n; ++i)
    ASSERT_TRUE(std::memcmp(a + i, b + i, sizeof *a) == 0 || (std::isnan(a[i]) && std::isnan(b[i])))
        << what << ", element " << i << " of " << n << ": " << a[i] << " and " << b[i];
}

// Ordinary numbers and, now and then, any bits.
void fill(EdgeArray<float>& x, std::uint64_t seed, bool any) {
  Xorshift next(seed);
  for (std::int64_t i = 0; i < x.size(); ++i)
    x[i] = any && next() % 8 == 0 ? bits_float(next()) : float(8.0 * next.uniform() - 4.0);
}

class FusedRows : public testing::TestWithParam<Isa> {
 protected:
  const cpu::Loops& loops() const { return cpu::loops(GetParam()); }
};

TEST_P(FusedRows, Sums) {
  for (Edge edge : {Edge::kEnd, Edge::kBegin})
    for (std::int64_t n : kLengths) {
      EdgeArray<float> x(n, edge);
      fill(x, std::uint64_t(n), false);
      const float sum = loops().row_sum(x.data(), n), mean = sum / float(n);
      EXPECT_EQ(sum, scalar_row_sum(n, [&](std::int64_t i) { return x[i]; })) << n;
      EXPECT_EQ(loops().row_deviation(x.data(), n, mean),
                scalar_row_sum(n, [&](std::int64_t i) { return (x[i] - mean) * (x[i] - mean); }))
          << n;
    }
}

TEST_P(FusedRows, Results) {
  for (Edge edge : {Edge::kEnd, Edge::kBegin})
    for (std::int64_t n : kLengths)
      for (FusedOp op : kOps)
        for (bool second : {false, true}) {  // the other form of GELU, a norm without beta
          EdgeArray<float> x(2 * n, edge), dy(n, edge), gamma(n, edge), beta(n, edge);
          EdgeArray<float> y(2 * n, edge), expected(2 * n, edge);
          fill(x, 1, true);
          fill(dy, 2, true);
          fill(gamma, 3, false);
          fill(beta, 4, false);
          cpu::FusedRow row{op,           second ? GeluForm::kTanh : GeluForm::kErf,
                            x.data(),     dy.data(),
                            gamma.data(), second ? nullptr : beta.data(),
                            0.3f,         1.7f,
                            y.data(),     n};
          loops().fused_row(row);
          row.y = expected.data();
          scalar_row(row);
          expect_same(y.data(), expected.data(), 2 * n, "op " + std::to_string(int(op)));
          if (HasFatalFailure()) return;
        }
}

// Whatever was seen before, and wherever the largest result and the broken ones stand.
TEST_P(FusedRows, LargestResults) {
  for (std::int64_t n : kLengths)
    for (FusedOp op : kOps)
      for (bool second : {false, true})
        for (bool any : {false, true}) {
          EdgeArray<float> x(2 * n, Edge::kEnd), dy(n, Edge::kEnd), gamma(n, Edge::kEnd),
              y(2 * n, Edge::kEnd);
          fill(x, 1 + std::uint64_t(n), any);
          fill(dy, 2, any);
          fill(gamma, 3, false);
          const cpu::FusedRow row{op,           second ? GeluForm::kTanh : GeluForm::kErf,
                                  x.data(),     dy.data(),
                                  gamma.data(), nullptr,
                                  0.3f,         1.7f,
                                  y.data(),     n};
          scalar_row(row);
          const std::int64_t results = op == FusedOp::kSwiGluBackward ? 2 * n : n;
          const std::uint32_t expected = loops().amax(y.data(), DType::kFloat32, results);
          for (std::uint32_t seen : {0u, float_bits(1.5f), expected - 1, expected, expected + 1}) {
            const std::uint32_t found = loops().fused_row_amax(row, seen);
            if (std::isnan(bits_float(expected)))
              EXPECT_TRUE(std::isnan(bits_float(found))) << int(op) << ", " << n;
            else
              EXPECT_EQ(found, std::max(seen, expected)) << int(op) << ", " << n;
          }
        }
}

// What fused_row_amax knows of a result before it is computed, and where that comes from.
TEST(Fused, BoundsOfResults) {
  const auto check = [](float x) {
    for (GeluForm form : {GeluForm::kErf, GeluForm::kTanh}) {
      ASSERT_LE(gelu(x, form), std::max(x, 0.0f)) << x;
      ASSERT_GT(gelu(x, form), -0.25f) << x;
      ASSERT_LE(std::abs(gelu_derivative(x, form)), 1.25f) << x;
      ASSERT_LE(std::abs(gelu(x, form)), gelu_bound(x)) << x;
      ASSERT_LE(std::abs(gelu_derivative(x, form)), gelu_gradient_bound(-1.0f, x)) << x;
    }
    ASSERT_LE(std::abs(swiglu(x, -1.0f)), swiglu_bound(x, -1.0f)) << x;
    ASSERT_LE(std::abs(swiglu_gate_gradient(-1.0f, x, 1.0f)),
              swiglu_gate_gradient_bound(-1.0f, x, 1.0f))
        << x;
    ASSERT_LE(std::abs(silu(x)), std::abs(x)) << x;
    ASSERT_LE(std::abs(silu_derivative(x)), 1.25f) << x;
  };
  const std::uint32_t step = exhaustive() ? 1 : quick() ? 99991 : 997;
  for (std::uint64_t bits = 0; bits < 0x7f800000; bits += step) {  // below Inf
    check(bits_float(std::uint32_t(bits)));
    check(bits_float(std::uint32_t(bits) | 0x80000000u));
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST_P(FusedRows, NormGradients) {
  for (std::int64_t n : kLengths)
    for (bool centered : {false, true}) {
      EdgeArray<float> x(n, Edge::kEnd), dy(n, Edge::kEnd), gamma(n, Edge::kEnd), dx(n, Edge::kEnd),
          dgamma(n, Edge::kEnd), dbeta(n, Edge::kEnd);
      fill(x, 5, false);
      fill(dy, 6, false);
      fill(gamma, 7, false);
      fill(dgamma, 8, false);
      fill(dbeta, 9, false);
      const float mean = centered ? 0.4f : 0.0f, rstd = 1.3f;
      std::vector<float> want_dx, want_gamma, want_beta;
      const auto h = [&](std::int64_t i) { return (x[i] - mean) * rstd; };
      const auto g = [&](std::int64_t i) { return dy[i] * gamma[i]; };
      const float a = centered ? scalar_row_sum(n, g) / float(n) : 0.0f,
                  b = scalar_row_sum(n, [&](std::int64_t i) { return g(i) * h(i); }) / float(n);
      for (std::int64_t i = 0; i < n; ++i) {
        want_dx.push_back(((g(i) - a) - h(i) * b) * rstd);
        want_gamma.push_back(dgamma[i] + dy[i] * h(i));
        want_beta.push_back(dbeta[i] + dy[i]);
      }
      loops().norm_backward_row({dy.data(), x.data(), gamma.data(), centered, mean, rstd, dx.data(),
                                 dgamma.data(), dbeta.data(), n});
      expect_same(dx.data(), want_dx.data(), n, "dx");
      expect_same(dgamma.data(), want_gamma.data(), n, "dgamma");
      expect_same(dbeta.data(), want_beta.data(), n, "dbeta");
      if (HasFatalFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(Levels, FusedRows, testing::ValuesIn(levels()), level_name);

}  // namespace
}  // namespace fp8amp::test
