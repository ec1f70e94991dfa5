// FP8 GEMM of the CUDA backend: its kernels in the emulator, its calls to a fake cuBLASLt that
// computes, and every result equal to the CPU backend's, bit for bit.
#include "tests/emulator/gemm_case.h"

namespace fp8amp::gpu {
namespace {

void expect_equal(const GemmCase& c, float tolerance = 0) {
  GemmRun run(c);
  const kernels::GemmArgs g = run.args();
  ASSERT_NO_THROW(kernels::cuda::gemm(g)) << describe(c) << ": " << fake_cublaslt::refused();
  EXPECT_EQ(run.differences(g, tolerance), 0) << describe(c);
}

template <class Body>
void for_layouts_and_formats(GemmCase c, Body body) {
  for (int bits = 0; bits < 16; ++bits) {
    c.transpose_a = bits & 1;
    c.transpose_b = bits & 2;
    c.a_type = bits & 4 ? DType::kE5M2 : DType::kE4M3;
    c.b_type = bits & 8 ? DType::kE5M2 : DType::kE4M3;
    body(c);
  }
}

constexpr DType kOutputs[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr std::int64_t kSizes[][3] = {{1, 1, 1},    {3, 5, 7},    {16, 16, 16}, {17, 33, 31},
                                      {64, 48, 80}, {5, 16, 130}, {33, 80, 64}, {70, 20, 48}};

class GemmOn : public testing::TestWithParam<int> {};

TEST_P(GemmOn, EqualsTheCpuForEveryLayoutAndFormat) {
  const FakeGpu gpu(GetParam());
  int next = 0;
  for (const auto& [m, n, k] : kSizes) {
    GemmCase c;
    c.m = m;
    c.n = n;
    c.k = k;
    for_layouts_and_formats(c, [&](GemmCase x) {
      x.d_type = kOutputs[next++ % 3];
      x.specials = next % 5 == 0;
      expect_equal(x);
    });
  }
  EXPECT_EQ(fake_cuda::damaged_allocations(), 0);
}

TEST_P(GemmOn, EqualsTheCpuWithBiasAndAccumulation) {
  const FakeGpu gpu(GetParam());
  for (DType d_type : kOutputs)
    for (DType bias_type : kOutputs)
      for (int bits = 0; bits < 8; ++bits) {
        GemmCase c;
        c.m = 19;
        c.n = bits & 1 ? 48 : 45;
        c.k = 32;
        c.d_type = d_type;
        c.bias_type = bias_type;
        c.with_bias = true;
        c.accumulate = bits & 2;
        c.bias_offset = bits & 4 ? 4 : 0;
        // FP32 D takes only a BF16 bias in cuBLASLt: others are added after the old D, not before
        const bool other_order = d_type == DType::kFloat32 && c.accumulate;
        expect_equal(c, other_order ? 1e-3f : 0);
        c.with_bias = false;
        expect_equal(c);
      }
}
INSTANTIATE_TEST_SUITE_P(ComputeCapability, GemmOn, testing::Values(80, 89, 90, 100, 120));

TEST(GemmCuda, EveryAlignmentOfEveryPointer) {
  const FakeGpu gpu(90);
  for (std::int64_t offset : {1, 2, 4, 8, 12, 16, 48}) {
    GemmCase c;
    c.m = 18;
    c.n = c.k = 32;
    c.transpose_a = offset & 4;
    c.a_offset = offset;
    expect_equal(c);
    c.a_offset = 0;
    c.b_offset = offset;
    expect_equal(c);
    c.b_offset = 0;
    c.d_offset = offset / 2 * 2;
    c.accumulate = true;
    expect_equal(c);
  }
}

TEST(GemmCuda, NothingIsCopiedWhereEverythingIsLegal) {
  for (int compute_capability : {89, 90, 100, 120})
    for (int layout = 0; layout < 4; ++layout) {
      const FakeGpu gpu(compute_capability);
      GemmCase c;
      c.m = 48;
      c.n = 64;
      c.k = 32;
      c.transpose_a = layout & 1;
      c.transpose_b = !(layout & 2);
      c.fast_accumulation = true;
      GemmRun run(c);
      const kernels::GemmArgs g = run.args();
      kernels::cuda::gemm(g);
      const int copies = compute_capability == 100 ? 0 : (layout & 1) + (layout >> 1);
      EXPECT_EQ(fake_cuda::counters().launches, copies);
      ASSERT_EQ(fake_cublaslt::products().size(), 1u);
      const fake_cublaslt::Product& p = fake_cublaslt::products()[0];
      EXPECT_EQ(p.d, g.d);
      EXPECT_EQ(p.m, c.n);  // cuBLASLt's D is ours, transposed
      EXPECT_TRUE(p.fast_accumulation);
      EXPECT_EQ(p.workspace_bytes, (compute_capability >= 90 ? 32u : 4u) << 20);
      if (copies < 2 || compute_capability == 100) {
        EXPECT_TRUE(p.a == g.b || p.b == g.a);
      }
      EXPECT_EQ(run.differences(g), 0);
    }
}

TEST(GemmCuda, E5M2TimesE5M2IsDecoded) {
  const FakeGpu gpu(90);
  GemmCase c;
  c.m = c.n = c.k = 32;
  c.a_type = c.b_type = DType::kE5M2;
  c.fast_accumulation = true;
  expect_equal(c);
  EXPECT_EQ(fake_cublaslt::products().at(0).a_type, CUDA_R_16BF);
  EXPECT_FALSE(fake_cublaslt::products().at(0).fast_accumulation);
}

TEST(GemmCuda, FusedBiasHasTheTypeOfTheOutput) {
  const FakeGpu gpu(90);
  for (DType d_type : {DType::kBFloat16, DType::kFloat16}) {
    GemmCase c;
    c.d_type = d_type;
    c.with_bias = true;
    GemmRun run(c);
    const kernels::GemmArgs g = run.args();
    auto* bias = reinterpret_cast<float*>(run.bias());
    for (int i = 0; i < 16; ++i) bias[i] = 1.0f + 0.001f * float(i);
    kernels::cuda::gemm(g);
    EXPECT_TRUE(fake_cublaslt::products().back().bias);
    for (int i = 0; i < 16; ++i) {
      std::uint16_t rounded;
      kernels::store_element(&rounded, d_type, 0, bias[i]);
      bias[i] = kernels::load_element(&rounded, d_type, 0);
    }
    EXPECT_EQ(run.differences(g), 0) << name(d_type);
  }
}

TEST(GemmCuda, ScalesMayBeMissing) {
  for (int compute_capability : {80, 90}) {
    const FakeGpu gpu(compute_capability);
    GemmRun run{GemmCase{}};
    kernels::GemmArgs g = run.args();
    g.a_scale_inv = g.b_scale_inv = nullptr;
    kernels::cuda::gemm(g);
    EXPECT_EQ(run.differences(g), 0);
  }
}

// The stride of the only row means nothing, and no rule is held against it.
TEST(GemmCuda, OneRowOfAnyStride) {
  const FakeGpu gpu(90);
  GemmCase c;
  c.m = 1;
  c.k = 32;
  GemmRun run(c);
  kernels::GemmArgs g = run.args();
  g.a_row = 37;
  kernels::cuda::gemm(g);
  EXPECT_EQ(run.differences(g), 0);
  EXPECT_EQ(fake_cuda::counters().launches, 0);
}

TEST(GemmCuda, EmptySizes) {
  const FakeGpu gpu(90);
  for (bool with_bias : {false, true})
    for (bool accumulate : {false, true}) {
      GemmCase c;
      c.k = 0;
      c.n = 37;
      c.with_bias = with_bias;
      c.accumulate = accumulate;
      expect_equal(c);
    }
  GemmRun run{GemmCase{}};
  kernels::GemmArgs g = run.args();
  fake_cuda::reset_counters();
  g.m = 0;
  kernels::cuda::gemm(g);
  g.m = 16;
  g.n = 0;
  kernels::cuda::gemm(g);
  EXPECT_EQ(fake_cuda::counters().launches, 0);
  EXPECT_TRUE(fake_cublaslt::products().empty());
}

TEST(GemmCuda, OldGpus) {
  {
    const FakeGpu gpu(75);
    GemmRun run{GemmCase{}};
    try {
      kernels::cuda::gemm(run.args());
      FAIL() << "no error";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("8.0 or higher, got 7.5"), std::string::npos);
    }
  }
  const FakeGpu gpu(86);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) expect_equal(GemmCase{});
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 1);  // once per process
}

}  // namespace
}  // namespace fp8amp::gpu
