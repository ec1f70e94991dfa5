// FP8 GEMM on the CPU: the loop of every instruction-set level of this machine against the scalar
// chain.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cpu/isa.h"
#include "tests/cpp/gemm_problem.h"

namespace fp8amp::kernels::cpu {
namespace {

std::vector<Isa> levels() {
  if (detect_isa() == Isa::kBaseline) return {Isa::kBaseline};
  std::vector<Isa> result;
  for (Isa isa : {Isa::kV2, Isa::kV3, Isa::kV4})
    if (isa <= detect_isa()) result.push_back(isa);
  return result;
}

class GemmLevel : public testing::TestWithParam<Isa> {
 protected:
  // Runs the part of D that `part` (of the whole loop) leaves; returns non-finite elements.
  template <class Part>
  std::int64_t check(const GemmCase& c, Part part) {
    GemmProblem problem(c);
    GemmLoop loop = problem.loop();
    part(loop);
    const std::vector<std::uint8_t> before = problem.d();
    scalar_chain(loop);
    const std::vector<std::uint8_t> expected = problem.d();
    problem.d() = before;
    loops(GetParam()).gemm(loop);
    std::int64_t special = 0;
    EXPECT_EQ(differences(expected, problem.d(), c.d_type, &special), 0) << describe(c);
    return special;
  }
  std::int64_t check(const GemmCase& c) {
    return check(c, [](GemmLoop&) {});
  }
};

// calls body(case) for the four layouts and the four pairs of formats
template <class Body>
void for_layouts_and_formats(GemmCase c, Body body) {
  for (int bits = 0; bits < 16; ++bits) {
    c.transpose_a = bits & 1;
    c.transpose_b = bits & 2;
    c.a_e5m2 = bits & 4;
    c.b_e5m2 = bits & 8;
    body(c);
  }
}

constexpr Size kSizes[] = {{1, 1, 1},     {3, 5, 7},       {2, 9, 15},    {6, 16, 16},
                           {7, 17, 17},   {8, 31, 33},     {13, 33, 100}, {14, 32, 31},
                           {15, 63, 255}, {16, 64, 256},   {29, 47, 257}, {1, 70, 300},
                           {40, 1, 513},  {31, 100, 1000}, {100, 20, 272}};

void expect_value(std::uint8_t code, bool e5m2, float actual) {
  const float value = load_element(&code, e5m2 ? DType::kE5M2 : DType::kE4M3, 0);
  EXPECT_TRUE(value == actual || (std::isnan(value) && std::isnan(actual)))
      << "code " << int(code) << " gave " << actual;
}

TEST_P(GemmLevel, EqualsScalarChainForOddSizesLayoutsAndFormats) {
  for (const Size& size : kSizes) {
    GemmCase c;
    c.m = size.m;
    c.n = size.n;
    c.k = size.k;
    for_layouts_and_formats(c, [&](const GemmCase& x) { EXPECT_EQ(check(x), 0); });
  }
}

TEST_P(GemmLevel, EveryTailOfTheTile) {
  for (std::int64_t m = 1; m <= 15; ++m)
    for (std::int64_t n = 1; n <= 33; ++n) {
      GemmCase c;
      c.m = m;
      c.n = n;
      c.k = 3 + (m + n) % 31;
      c.transpose_a = n & 1;
      c.transpose_b = n & 2;
      check(c);
    }
}

TEST_P(GemmLevel, SizesBeyondEveryBlock) {
  // rows, columns and k of more than one block each, with tails
  const Size sizes[] = {{1100, 35, 300}, {37, 1100, 300}, {110, 70, 1300}, {2050, 33, 20}};
  for (const Size& size : sizes)
    for (int layout = 0; layout < 4; ++layout) {
      GemmCase c;
      c.m = size.m;
      c.n = size.n;
      c.k = size.k;
      c.transpose_a = layout & 1;
      c.transpose_b = layout & 2;
      c.b_e5m2 = layout & 1;
      check(c);
    }
}

TEST_P(GemmLevel, NaNAndInf) {
  std::int64_t special = 0, total = 0;
  for (const Size& size : kSizes) {
    GemmCase c;
    c.m = size.m;
    c.n = size.n;
    c.k = size.k;
    c.values = Values::kSpecial;
    for_layouts_and_formats(c, [&](const GemmCase& x) {
      special += check(x);
      total += x.m * x.n;
    });
  }
  EXPECT_GT(special, total / 20);  // the cases have some, and not only
  EXPECT_LT(special, total * 19 / 20);
}

TEST_P(GemmLevel, EveryCode) {
  // products with 1.0 return the codes' values, each code in every place of a panel and in both
  // layouts
  constexpr std::int64_t kRows = 32, kK = 256;
  for (bool e5m2 : {false, true})
    for (bool transpose : {false, true}) {
      std::vector<std::uint8_t> codes(kRows * kK), one(kK, 0);
      std::vector<float> d(kRows);
      for (std::int64_t r = 0; r < kRows; ++r)
        for (std::int64_t k = 0; k < kK; ++k)
          codes[transpose ? r * kK + k : k * kRows + r] = static_cast<std::uint8_t>(r + k);
      GemmLoop l{};
      l.a = one.data();
      l.a_e5m2 = l.b_e5m2 = e5m2;
      l.a_row = kK;
      l.a_k = 1;
      l.b_row = transpose ? kK : 1;
      l.b_k = transpose ? 1 : kRows;
      l.d = d.data();
      l.d_type = DType::kFloat32;
      l.m1 = 1;
      l.n1 = l.d_row = kRows;
      // K = 1 at each k in turn, from where whole vectors may be read and where not
      for (std::int64_t k = 0; k < kK; ++k) {
        l.b = codes.data() + k * l.b_k;
        one[0] = e5m2 ? 0x3c : 0x38;
        l.k = 1;
        loops(GetParam()).gemm(l);
        for (std::int64_t r = 0; r < kRows; ++r)
          expect_value(static_cast<std::uint8_t>(r + k), e5m2, d[r]);
      }
      // sixteen k of which only one counts: NaN codes show in rows of zeros too, so only finite
      // ones here
      for (std::int64_t k = 0; k < kK; ++k) {
        std::fill(one.begin(), one.end(), std::uint8_t(0));
        one[k % 16] = e5m2 ? 0x3c : 0x38;
        l.b = codes.data() + k / 16 * 16 * l.b_k;
        l.k = 16;
        loops(GetParam()).gemm(l);
        for (std::int64_t r = 0; r < kRows; ++r) {
          bool finite = true;
          for (std::int64_t i = 0; i < 16; ++i)
            finite &= !is_special(static_cast<std::uint8_t>(r + k / 16 * 16 + i), e5m2);
          if (finite) expect_value(static_cast<std::uint8_t>(r + k), e5m2, d[r]);
        }
      }
    }
}

TEST_P(GemmLevel, OutputTypesBiasAndAccumulate) {
  for (DType d_type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    for (DType bias_type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
      for (int bits = 0; bits < 8; ++bits) {
        GemmCase c;
        c.m = 19;
        c.n = bits & 4 ? 67 : 64;
        c.k = bits & 1 ? 300 : 40;
        c.a_scale_inv = 0x1p-9f;
        c.b_scale_inv = 0x1.1p-7f;
        c.d_type = d_type;
        c.bias_type = bias_type;
        c.with_bias = bits & 2;
        for (bool accumulate : {false, true}) {
          c.accumulate = accumulate;
          for (Values values : {Values::kFinite, Values::kSpecial}) {
            c.values = values;
            check(c);
          }
        }
      }
}

TEST_P(GemmLevel, HugeAndTinyScales) {
  const float scales[][2] = {{0x1p126f, 0x1p-126f}, {0x1p-126f, 0x1p126f}, {0x1p126f, 0x1p126f},
                             {0x1p-126f, 1.0f},     {0x1p-100f, 0x1p-40f}, {0x1p-149f, 0x1p100f},
                             {0x1.8p125f, 3e-30f},  {-2.0f, 0x1p-60f},     {INFINITY, 1.0f},
                             {1.0f, NAN},           {0.0f, 1.0f}};
  for (auto [a, b] : scales)
    for (int e5m2 = 0; e5m2 < 4; ++e5m2)
      for (DType d_type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        GemmCase c;
        c.m = 9;
        c.n = 50;
        c.k = 20;
        c.a_e5m2 = e5m2 & 1;
        c.b_e5m2 = e5m2 & 2;
        c.a_scale_inv = a;
        c.b_scale_inv = b;
        c.d_type = d_type;
        check(c);
      }
}

TEST_P(GemmLevel, EmptyContractionGivesBias) {
  for (bool with_bias : {false, true})
    for (bool accumulate : {false, true})
      for (DType d_type : {DType::kFloat32, DType::kBFloat16}) {
        GemmCase c;
        c.m = 9;
        c.n = 21;
        c.k = 0;
        c.with_bias = with_bias;
        c.accumulate = accumulate;
        c.d_type = d_type;
        check(c);
      }
}

TEST_P(GemmLevel, WritesItsPartOnly) {
  struct Part {
    std::int64_t m0, m1, n0, n1;
  };
  const Part parts[] = {{0, 0, 0, 40}, {5, 5, 3, 9}, {3, 4, 7, 8}, {6, 29, 16, 40}, {1, 30, 0, 39}};
  for (const Part& part : parts)
    for (std::int64_t k : {24, 300})
      for (DType d_type : {DType::kFloat32, DType::kFloat16}) {
        GemmCase c;
        c.m = 30;
        c.n = 40;
        c.k = k;
        c.d_type = d_type;
        c.with_bias = true;
        check(c, [&](GemmLoop& l) {
          l.m0 = part.m0;
          l.m1 = part.m1;
          l.n0 = part.n0;
          l.n1 = part.n1;
        });
      }
}

INSTANTIATE_TEST_SUITE_P(Isa, GemmLevel, testing::ValuesIn(levels()),
                         [](const testing::TestParamInfo<Isa>& isa) {
                           return std::string(name(isa.param));
                         });

}  // namespace
}  // namespace fp8amp::kernels::cpu
