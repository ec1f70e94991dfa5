// FP8 GEMM of the CUDA backend with a scale for each row or block: cuBLASLt's own scale modes where
// they are legal, the other routes elsewhere.
#include <array>

#include "tests/emulator/gemm_case.h"

namespace fp8amp::gpu {
namespace {

using enum ScaleGranularity;

constexpr ScaleGranularity kAll[] = {kTensor, kRow, kBlock1x128, kBlock128x128};
constexpr DType kOutputs[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

bool has_blocks(const GemmCase& c) {
  return c.a_granularity >= kBlock1x128 || c.b_granularity >= kBlock1x128;
}

// Whether cuBLASLt takes the pair on compute capability 9.0.
bool is_native(const GemmCase& c) {
  if (!has_blocks(c)) return c.a_granularity == c.b_granularity;
  return c.a_granularity >= kBlock1x128 && c.b_granularity >= kBlock1x128 &&
         !(c.a_granularity == kBlock128x128 && c.b_granularity == kBlock128x128);
}

template <class Body>
void for_pairs(const Body& body) {
  for (ScaleGranularity a : kAll)
    for (ScaleGranularity b : kAll) {
      GemmCase c;
      c.a_granularity = a;
      c.b_granularity = b;
      body(c);
    }
}

std::string describe_scales(const GemmCase& c) {
  return describe(c) + ", scales " + std::to_string(int(c.a_granularity)) + " x " +
         std::to_string(int(c.b_granularity));
}

void expect_equal(const GemmCase& c, float tolerance = 0) {
  GemmRun run(c);
  const kernels::GemmArgs g = run.args();
  ASSERT_NO_THROW(kernels::cuda::gemm(g)) << describe_scales(c) << ": " << fake_cublaslt::refused();
  EXPECT_EQ(run.differences(g, tolerance), 0) << describe_scales(c);
}

TEST(GemmBlocksCuda, LegalPairsAreCublasLtsOwn) {
  const FakeGpu gpu(90);
  int next = 0;
  for (std::int64_t k : {16, 128, 144, 400, 1040})
    for_pairs([&](GemmCase c) {
      if (!is_native(c)) return;
      c.m = c.a_granularity == kBlock1x128 ? 136 : 132;
      c.n = 144;
      c.k = k;
      c.d_type = kOutputs[next % 3];
      c.b_type = next % 4 == 3 ? DType::kE5M2 : DType::kE4M3;
      c.with_bias = next % 2;
      c.accumulate = next % 5 == 0 && !c.with_bias;
      c.fast_accumulation = true;
      if (c.d_type == DType::kFloat32) c.bias_type = DType::kBFloat16;
      next++;
      fake_cuda::reset_counters();
      expect_equal(c);
      const fake_cublaslt::Product& p = fake_cublaslt::products().back();
      const int modes[] = {0, 3, 4, 5};
      EXPECT_EQ(p.a_scale_mode, modes[int(c.b_granularity)]);  // cuBLASLt's A is our b
      EXPECT_EQ(p.b_scale_mode, modes[int(c.a_granularity)]);
      EXPECT_EQ(p.fast_accumulation, !has_blocks(c));
      EXPECT_EQ(fake_cuda::counters().launches, c.with_bias && c.d_type != DType::kFloat32 ? 1 : 0);
    });
}

TEST(GemmBlocksCuda, KThatIsNoMultipleOf16IsPadded) {
  const FakeGpu gpu(90);
  for (std::int64_t k : {1, 127, 129, 250})
    for_pairs([&](GemmCase c) {
      if (!is_native(c)) return;
      c.m = 24;
      c.n = 32;
      c.k = k;
      expect_equal(c);
      EXPECT_EQ(fake_cublaslt::products().back().a_type, CUDA_R_8F_E4M3);
    });
}

// Scales of rows multiply the sums of an FP8 product: the CPU's bits on every GPU, for every shape.
TEST(GemmBlocksCuda, RowScalesEverywhere) {
  for (int compute_capability : {80, 89, 90, 100, 120}) {
    const FakeGpu gpu(compute_capability);
    int next = 0;
    for (auto [m, n, k] : {std::array<std::int64_t, 3>{1, 1, 1},
                           {3, 5, 7},
                           {17, 33, 131},
                           {64, 48, 80},
                           {130, 16, 130}})
      for_pairs([&](GemmCase c) {
        if (has_blocks(c)) return;
        c.m = m;
        c.n = n;
        c.k = k;
        c.d_type = kOutputs[next % 3];
        c.with_bias = next % 2;
        c.a_type = next++ % 4 == 1 ? DType::kE5M2 : DType::kE4M3;
        expect_equal(c);
        const cudaDataType_t b = compute_capability >= 89 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
        EXPECT_EQ(fake_cublaslt::products().back().a_type, b);  // cuBLASLt's A is our b
      });
  }
  EXPECT_EQ(fake_cuda::damaged_allocations(), 0);
}

// Scales that are powers of two are exact in BF16: what is left is the order of the additions.
TEST(GemmBlocksCuda, BlocksAreDecodedWhereTheyAreNotLegal) {
  for (int compute_capability : {80, 89, 90, 100}) {
    const FakeGpu gpu(compute_capability);
    for (auto [m, n, k] :
         {std::array<std::int64_t, 3>{1, 1, 1}, {3, 5, 127}, {17, 33, 400}, {130, 48, 129}})
      for_pairs([&](GemmCase c) {
        if (!has_blocks(c)) return;
        c.m = m;
        c.n = n;
        c.k = k;
        c.d_type = DType::kFloat32;
        c.with_bias = m == 17;
        c.accumulate = m == 130;
        c.odd_scales = false;
        expect_equal(c, k <= 128 ? 0.0f : 4.0f);  // sums reach 1e6: 2^-18 of that
        EXPECT_EQ(fake_cublaslt::products().back().a_type, CUDA_R_16BF);
      });
  }
  EXPECT_EQ(fake_cuda::damaged_allocations(), 0);
}

// Whatever the rules say: a library without an algorithm for the scales costs speed, not the step.
TEST(GemmBlocksCuda, BlocksAreDecodedWhereTheLibraryHasNoAlgorithm) {
  for_pairs([&](GemmCase c) {
    if (!is_native(c) || !has_blocks(c)) return;
    const FakeGpu gpu(90);
    fake_cublaslt::set_block_multiple(256);
    c.m = 128;
    c.n = 48;
    c.k = 128;
    c.with_bias = c.accumulate = true;
    c.d_type = DType::kFloat32;
    c.odd_scales = false;
    expect_equal(c);
    EXPECT_EQ(fake_cublaslt::products().back().a_type, CUDA_R_16BF);
    const std::int64_t searches = fake_cublaslt::calls("MatmulAlgoGetHeuristic");
    expect_equal(c);
    EXPECT_EQ(fake_cublaslt::calls("MatmulAlgoGetHeuristic"), searches);  // it is asked once
  });
  EXPECT_EQ(fake_cuda::damaged_allocations(), 0);
}

TEST(GemmBlocksCuda, DecodedBlocksWithOddScalesRoundOnceToBFloat16) {
  const FakeGpu gpu(89);
  GemmCase c;
  c.m = c.n = 1;
  c.k = 1;
  c.a_granularity = c.b_granularity = kBlock1x128;
  GemmRun run(c);
  kernels::GemmArgs g = run.args();
  float d = 0;
  g.d = &d;
  g.d_type = DType::kFloat32;
  const auto rounded = [](std::uint8_t code, float scale) {
    return numerics::bfloat16_to_float(
        numerics::float_to_bfloat16(numerics::decode<numerics::E4M3>(code) * scale));
  };
  kernels::cuda::gemm(g);
  EXPECT_EQ(d, rounded(g.a[0], g.a_scale_inv[0]) * rounded(g.b[0], g.b_scale_inv[0]));
}

TEST(GemmBlocksCuda, OldCublasLtAndUnalignedScales) {
  for (std::size_t version : {120804, 130100})
    for_pairs([&](GemmCase c) {
      if (!is_native(c) || c.a_granularity == kTensor) return;
      const FakeGpu gpu(90);
      fake_cublaslt::reset(90, version);
      c.m = 20;
      c.n = 32;
      c.k = 100;
      c.d_type = DType::kFloat32;
      c.odd_scales = false;
      if (version == 130100) c.scale_offset = 4;
      expect_equal(c);
      EXPECT_EQ(fake_cublaslt::products().back().a_scale_mode, 0);
    });
}

TEST(GemmBlocksCuda, EmptyContraction) {
  const FakeGpu gpu(90);
  for_pairs([](GemmCase c) {
    c.k = 0;
    c.with_bias = true;
    expect_equal(c);
  });
}

TEST(GemmBlocksCuda, OneWarningForAll) {
  testing::internal::CaptureStderr();
  const FakeGpu gpu(89);
  GemmCase c;
  c.a_granularity = c.b_granularity = kBlock1x128;
  c.odd_scales = false;
  for (int i = 0; i < 3; ++i) expect_equal(c);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 1);  // once per process
}

}  // namespace
}  // namespace fp8amp::gpu
