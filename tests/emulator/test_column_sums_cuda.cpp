// Sums over rows of the CUDA backend on the emulator, alone and in the casts: every bit is the CPU
// backend's.
#include "kernels/cuda/quantize_transpose.cuh"
#include "kernels/quantize.h"
#include "tests/emulator/cuda_data.h"
#include "tests/emulator/cuda_emu.h"

namespace fp8amp {
namespace {

using namespace kernels;
using test::Data;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kE4M3,
                            DType::kE5M2};
constexpr std::int64_t kRows[] = {0, 1, 31, 32, 33, 128, 130, 1023, 1025, 1056};
constexpr std::int64_t kCols[] = {1, 16, 33, 130, 144};

enum class Way { kAlone, kCast, kTranspose };

struct Written {
  Data sums, y, transposed;
  float scale_inv = 0.25f, amax = -1.0f;
};

struct Sums {
  DType type = DType::kBFloat16;
  std::int64_t rows = 65, cols = 144;
  Way way = Way::kTranspose;
  DType format = DType::kE5M2;
  std::int64_t offset = 0;  // misalignment of every tensor, in elements
  bool special = false;
  Rounding rounding = Rounding::kNearest;
  std::uint32_t seed = 1;

  struct Backend {
    void (*quantize)(const QuantizeArgs&);
    void (*column_sums)(const ColumnSumsArgs&);
  };
  Written run(const Backend& backend) const {
    const std::int64_t n = rows * cols;
    const float x_scale_inv = 0.3f, *factor = is_float8(type) ? &x_scale_inv : nullptr;
    Data x = test::random_data(type, n, seed, 3.0f, offset);
    if (special) test::add_specials(x);
    Written w{test::random_data(DType::kFloat32, cols, 2, 1.0f, offset), Data(format, n, offset),
              Data(format, n, offset)};
    if (way == Way::kAlone) {
      backend.column_sums({x.get(), type, factor, rows, cols, w.sums.as<float>(), nullptr});
      return w;
    }
    QuantizeArgs a{};
    a.x = x.get(), a.x_type = type, a.x_scale_inv = factor, a.n = n;
    a.y = w.y.get(), a.format = format, a.scale_inv = &w.scale_inv, a.amax = &w.amax;
    a.transposed = way == Way::kTranspose ? w.transposed.as<std::uint8_t>() : nullptr;
    a.rows = rows, a.cols = cols, a.column_sums = w.sums.as<float>();
    a.rounding = rounding, a.overflow = Overflow::kNaN, a.key = 5;
    backend.quantize(a);
    return w;
  }
  void expect_equal() const {
    SCOPED_TRACE(std::string(name(type)) + ", " + std::to_string(rows) + " x " +
                 std::to_string(cols) + ", way " + std::to_string(int(way)));
    const Written host = run({cpu::quantize, cpu::column_sums}),
                  device = run({cuda::quantize, cuda::column_sums});
    for (std::int64_t i = 0; i < cols; ++i) {
      const float a = load_element(host.sums.get(), DType::kFloat32, i),
                  b = load_element(device.sums.get(), DType::kFloat32, i);
      ASSERT_TRUE(test::same(a, b)) << "column " << i << ": " << a << " and " << b;
    }
    ASSERT_EQ(host.y.difference(device.y), "equal");
    ASSERT_EQ(host.transposed.difference(device.transposed), "equal");
    ASSERT_EQ(host.scale_inv, device.scale_inv);
    ASSERT_TRUE(test::same(host.amax, device.amax));
  }
};

constexpr Way kWays[] = {Way::kAlone, Way::kCast, Way::kTranspose};

TEST(CudaColumnSums, EveryShape) {
  for (Way way : kWays)
    for (std::int64_t rows : kRows)
      for (std::int64_t cols : kCols) {
        if (rows > 1000 && cols > 33 && rows != 1025) continue;
        Sums{.rows = rows, .cols = cols, .way = way}.expect_equal();
        if (testing::Test::HasFailure()) return;
      }
}

TEST(CudaColumnSums, EveryTypeAlignmentAndSpecialValue) {
  for (Way way : kWays)
    for (DType type : kTypes)
      for (std::int64_t offset : {0, 1})
        for (bool special : {false, true})
          for (std::int64_t cols : {33, 144})
            Sums{.type = type, .cols = cols, .way = way, .offset = offset, .special = special}
                .expect_equal();
}

TEST(CudaColumnSums, EveryFormatAndRounding) {
  for (DType format : {DType::kE4M3, DType::kE5M2, DType::kFloat16})
    for (std::int64_t cols : {33, 144}) {
      Sums{.cols = cols, .way = Way::kCast, .format = format, .rounding = Rounding::kStochastic}
          .expect_equal();
      if (is_float8(format)) Sums{.cols = cols, .format = format}.expect_equal();
    }
}

TEST(CudaColumnSums, AnySchedule) {
  for (Way way : kWays)
    emu::for_each_schedule([&] { Sums{.rows = 200, .cols = 160, .way = way}.expect_equal(); });
  emu::for_each_schedule([&] {  // sums of sums of sums: a launch may not write what it still reads
    Sums{.rows = 32 * 1024 + 40, .cols = 1, .way = Way::kAlone}.expect_equal();
  });
}

// A block that goes over several tiles stages the values of each in the same memory.
TEST(CudaColumnSums, OneBlockForAllTiles) {
  constexpr std::int64_t kR = 272, kC = 400;
  const Data x = test::random_data(DType::kFloat32, kR * kC, 1, 3.0f);
  const float scale = 20.0f;
  float scale_inv = 0;
  Data y(DType::kE4M3, kR * kC), transposed = y;
  kernels::cuda::TransposeParams p{};
  p.cast.in = {x.get(), nullptr, kR * kC, 0};
  p.cast.y = y.get();
  p.cast.choice.source = ScaleSource::kGiven;
  p.cast.choice.scale = &scale;
  p.cast.scale_inv = &scale_inv;
  p.transposed = transposed.as<std::uint8_t>();
  p.rows = kR, p.cols = kC;
  p.aligned_rows = p.aligned_cols = true;
  for (unsigned grid : {1u, 5u})
    emu::for_each_schedule([&] {
      Data sums(DType::kFloat32, 9 * kC);
      p.column_sums = sums.as<float>();
      FP8AMP_LAUNCH(
          (kernels::cuda::quantize_transpose_kernel<DType::kFloat32, numerics::E4M3, true>),
          dim3(grid), dim3(kernels::cuda::kThreads), 0, nullptr, p);
      for (std::int64_t k = 0; k < 9; ++k) {
        std::vector<float> want(kC);
        const std::int64_t rows = std::min<std::int64_t>(32, kR - 32 * k);
        cpu::column_sums({element_pointer(x.get(), DType::kFloat32, 32 * k * kC), DType::kFloat32,
                          nullptr, rows, kC, want.data(), nullptr});
        for (std::int64_t c = 0; c < kC; ++c)
          ASSERT_EQ(sums.as<float>()[k * kC + c], want[std::size_t(c)]) << k << ", " << c;
      }
    });
}

}  // namespace
}  // namespace fp8amp
