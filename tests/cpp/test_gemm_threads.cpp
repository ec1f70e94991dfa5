// The driver of the FP8 GEMM on the CPU: any number of threads, any cut into cells gives the bits
// of the scalar chain.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "fp8amp/parallel.h"
#include "kernels/cpu/isa.h"
#include "kernels/gemm.h"
#include "tests/cpp/gemm_problem.h"

namespace fp8amp::kernels::cpu {
namespace {

GemmArgs arguments(const GemmLoop& l) {
  GemmArgs args{};
  args.a = l.a;
  args.b = l.b;
  args.a_type = l.a_e5m2 ? DType::kE5M2 : DType::kE4M3;
  args.b_type = l.b_e5m2 ? DType::kE5M2 : DType::kE4M3;
  args.a_row = l.a_row;
  args.a_k = l.a_k;
  args.b_row = l.b_row;
  args.b_k = l.b_k;
  args.d = l.d;
  args.d_type = l.d_type;
  args.bias = l.bias;
  args.bias_type = l.bias_type;
  args.m = l.m1;
  args.n = l.n1;
  args.k = l.k;
  args.accumulate = l.accumulate;
  return args;
}

void expect_scalar_chain(const GemmCase& c) {
  GemmProblem problem(c, 0);
  GemmArgs args = arguments(problem.loop());
  args.a_scale_inv = &c.a_scale_inv;
  args.b_scale_inv = &c.b_scale_inv;
  const std::vector<std::uint8_t> before = problem.d();
  scalar_chain(problem.loop());
  const std::vector<std::uint8_t> expected = problem.d();
  for (int threads : {1, 2, 3, 4, 7, 16}) {
    set_num_threads(threads);
    problem.d() = before;
    gemm(args);
    EXPECT_EQ(differences(expected, problem.d(), c.d_type), 0)
        << describe(c) << " threads " << threads;
  }
}

TEST(GemmThreads, SameBitsForAnyNumber) {
  // columns, rows and cells of a grid; the last is one cell, too small to be cut
  const Size sizes[] = {{1, 1500, 400}, {1500, 1, 400}, {200, 211, 300}, {16, 900, 300},
                        {900, 16, 300}, {97, 400, 257}, {3, 5, 60000},   {20, 30, 40}};
  for (const Size& size : sizes)
    for (int bits = 0; bits < 4; ++bits) {
      GemmCase c;
      c.m = size.m;
      c.n = size.n;
      c.k = size.k;
      c.transpose_a = bits & 1;
      c.transpose_b = bits & 2;
      c.b_e5m2 = bits & 1;
      c.with_bias = bits & 1;
      c.accumulate = bits & 2;
      c.d_type = bits == 3 ? DType::kBFloat16 : DType::kFloat32;
      expect_scalar_chain(c);
    }
}

TEST(GemmThreads, NullScalesAreOne) {
  GemmCase c;
  c.m = 20;
  c.n = 30;
  c.k = 40;
  c.a_scale_inv = c.b_scale_inv = 1.0f;
  GemmProblem expected(c, 0), actual(c, 0);
  scalar_chain(expected.loop());
  gemm(arguments(actual.loop()));
  EXPECT_EQ(differences(expected.d(), actual.d(), c.d_type), 0);
}

TEST(GemmThreads, EmptyOutputAndEmptyContraction) {
  const Size sizes[] = {{0, 5, 7}, {5, 0, 7}, {0, 0, 0}, {5, 7, 0}, {300, 400, 0}};
  for (const Size& size : sizes) {
    GemmCase c;
    c.m = size.m;
    c.n = size.n;
    c.k = size.k;
    c.with_bias = true;
    expect_scalar_chain(c);
  }
}

}  // namespace
}  // namespace fp8amp::kernels::cpu
