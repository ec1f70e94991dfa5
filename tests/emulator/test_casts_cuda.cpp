// Casts of the CUDA backend, on the emulator: every bit is the CPU backend's.
#include "kernels/cuda/vectors.cuh"
#include "kernels/quantize.h"
#include "tests/emulator/cuda_data.h"
#include "tests/emulator/cuda_emu.h"

namespace fp8amp {
namespace {

using namespace kernels;
using test::Data;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kE4M3,
                            DType::kE5M2};
constexpr DType kFormats[] = {DType::kE4M3, DType::kE5M2, DType::kFloat16};
constexpr std::int64_t kSizes[] = {0, 1, 15, 16, 17, 1000, 9000};

std::string describe(DType x, DType y, std::int64_t n) {
  return std::string(name(x)) + " to " + name(y) + ", " + std::to_string(n) + " elements";
}

// What a cast writes.
struct Written {
  Data y, transposed;
  float scale_inv = 0.25f, amax = -1.0f, found_inf = 0.0f;
  std::vector<float> history{};
};

struct Cast {
  const Data* x;
  DType format;
  std::int64_t offset = 0;          // misalignment of y, in elements
  std::int64_t rows = 0, cols = 0;  // transposed if rows != 0
  bool amax = true, found_inf = true;
  std::vector<float> history{};
  QuantizeArgs args{};

  Written run(void (*quantize)(const QuantizeArgs&)) const {
    Written w{Data(format, x->size(), offset), Data(format, rows * cols, offset)};
    w.history = history;
    QuantizeArgs a = args;
    a.x = x->get();
    a.x_type = x->type();
    a.n = x->size();
    a.y = w.y.get();
    a.format = format;
    a.scale_inv = &w.scale_inv;
    a.amax = amax ? &w.amax : nullptr;
    a.found_inf = found_inf ? &w.found_inf : nullptr;
    a.history = w.history.data();
    a.history_length = std::int64_t(w.history.size()) - 2;
    a.rows = rows;
    a.cols = cols;
    a.transposed = rows ? w.transposed.as<std::uint8_t>() : nullptr;
    quantize(a);
    return w;
  }

  void expect_equal() const {
    const Written host = run(cpu::quantize), device = run(cuda::quantize);
    EXPECT_EQ(host.y.difference(device.y), "equal");
    EXPECT_EQ(host.transposed.difference(device.transposed), "equal");
    EXPECT_EQ(host.scale_inv, device.scale_inv);
    EXPECT_TRUE(test::same(host.amax, device.amax)) << host.amax << " and " << device.amax;
    EXPECT_EQ(host.found_inf, device.found_inf);
    EXPECT_EQ(host.history, device.history);
  }
};

QuantizeArgs options(Rounding rounding = Rounding::kNearest) {
  QuantizeArgs a{};
  a.rounding = rounding;
  a.key = 0x12345u;
  return a;
}

TEST(CudaCasts, EveryTypeFormatAndRounding) {
  for (DType type : kTypes)
    for (DType format : kFormats)
      for (Rounding rounding : {Rounding::kNearest, Rounding::kStochastic})
        for (std::int64_t n : kSizes) {
          SCOPED_TRACE(describe(type, format, n));
          const Data x = test::random_data(type, n, 1, 3.0f);
          Cast{.x = &x, .format = format, .args = options(rounding)}.expect_equal();
        }
}

TEST(CudaCasts, AnySchedule) {
  const Data x = test::random_data(DType::kBFloat16, 9001, 2);
  emu::for_each_schedule(
      [&] { Cast{.x = &x, .format = DType::kE4M3, .args = options()}.expect_equal(); });
}

TEST(CudaCasts, Unaligned) {
  for (DType type : kTypes)
    for (std::int64_t offset : {1, 3}) {
      SCOPED_TRACE(describe(type, DType::kE4M3, 1000));
      const Data x = test::random_data(type, 1000, 3, 1.0f, offset),
                 aligned = test::random_data(type, 1000, 3);
      Cast{.x = &x, .format = DType::kE4M3, .args = options()}.expect_equal();
      Cast{.x = &aligned, .format = DType::kE4M3, .offset = offset, .args = options()}
          .expect_equal();
    }
}

TEST(CudaCasts, SpecialValuesAndPolicies) {
  for (DType type : kTypes)
    for (DType format : kFormats)
      for (Overflow overflow : {Overflow::kSaturate, Overflow::kNaN})
        for (Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
          SCOPED_TRACE(describe(type, format, 200));
          Data x = test::random_data(type, 200, 4, 1e4f);
          test::add_specials(x);
          float scale = 7.0f;
          Cast cast{.x = &x, .format = format, .args = options(rounding)};
          cast.args.overflow = overflow;
          cast.expect_equal();  // a non-finite amax: scale 1
          cast.args.source = ScaleSource::kGiven;
          cast.args.scale = &scale;
          cast.expect_equal();
        }
}

// All 65,536 inputs of 16 bits, at scales that meet subnormal codes and saturation.
TEST(CudaCasts, EveryInputOf16Bits) {
  for (DType type : {DType::kFloat16, DType::kBFloat16}) {
    Data x(type, 65536);
    for (int i = 0; i < 65536; ++i) x.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(i);
    for (DType format : kFormats)
      for (Rounding rounding : {Rounding::kNearest, Rounding::kStochastic})
        for (float scale : {1.0f, 0x1p-6f, 0x1p-20f, 1000.0f}) {
          SCOPED_TRACE(describe(type, format, 65536));
          Cast cast{.x = &x, .format = format, .args = options(rounding)};
          cast.args.source = ScaleSource::kGiven;
          cast.args.scale = &scale;
          cast.expect_equal();
        }
  }
}

// The sum that stands for stochastic rounding, over all exponents and the ends of the random bits.
template <class F>
void expect_sums_are_encodes() {
  using Sum = kernels::cuda::StochasticSum<F>;
  for (std::uint64_t i = 0; i < 1u << 22; ++i) {
    const float y = numerics::bits_float(std::uint32_t(i << 9) ^ numerics::random_word(5, i) % 512);
    const std::uint32_t words[] = {numerics::random_word(6, i) & 0xfffffu, 0, 0xfffffu};
    for (std::uint32_t random : words) {
      const std::uint32_t code =
          numerics::encode<F>(y, Rounding::kStochastic, Overflow::kSaturate, random);
      const std::uint32_t sum = Sum::of(y, random), upper = Sum::upper(sum, y);
      if (numerics::abs_bits(y) <= numerics::float_bits(F::kMax)) {
        ASSERT_LE(sum, Sum::kLimit);
      }
      if (sum > Sum::kLimit) continue;
      ASSERT_EQ(upper >> (32 - 8 * sizeof(typename F::Bits)), code) << y << ", " << random;
    }
  }
}
TEST(CudaCasts, StochasticSums) {
  expect_sums_are_encodes<numerics::E4M3>();
  expect_sums_are_encodes<numerics::E5M2>();
  expect_sums_are_encodes<numerics::Fp16>();
}

TEST(CudaCasts, ScaleOfTheInput) {
  const float x_scale_inv = 0.37f;
  for (DType type : {DType::kE4M3, DType::kFloat16}) {
    const Data x = test::random_data(type, 777, 5);
    Cast cast{.x = &x, .format = DType::kE5M2, .args = options()};
    cast.args.x_scale_inv = &x_scale_inv;
    cast.args.scale_rounding = ScaleRounding::kExact;
    cast.args.margin = 2;
    cast.expect_equal();
  }
}

TEST(CudaCasts, ScalesGivenAndKeptAndNothingElseWanted) {
  const Data x = test::random_data(DType::kFloat32, 333, 6);
  const float scale = 100.0f;
  for (bool wanted : {false, true}) {
    Cast cast{
        .x = &x, .format = DType::kE4M3, .amax = wanted, .found_inf = wanted, .args = options()};
    cast.expect_equal();  // current scaling
    cast.args.source = ScaleSource::kKeep;
    cast.expect_equal();
    cast.args.source = ScaleSource::kGiven;
    cast.args.scale = &scale;
    cast.expect_equal();
  }
}

// Delayed scaling, step by step: warm-up, full, a non-finite amax, warm-up again; and without an
// update.
TEST(CudaCasts, DelayedScaling) {
  for (bool amax : {true, false}) {
    std::vector<float> history(2 + 3, 0.0f);
    for (int step = 0; step < 9; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      Data x =
          test::random_data(DType::kBFloat16, 500, std::uint32_t(step), 1.0f + float(step % 4));
      if (step == 5) test::add_specials(x);
      Cast cast{
          .x = &x, .format = DType::kE4M3, .amax = amax, .history = history, .args = options()};
      cast.args.source = ScaleSource::kDelayed;
      cast.args.scale_rounding = ScaleRounding::kExact;
      cast.args.update_history = false;
      cast.expect_equal();
      cast.args.update_history = true;
      cast.expect_equal();
      history = cast.run(cpu::quantize).history;
    }
  }
}

TEST(CudaCasts, Transposed) {
  constexpr std::int64_t kShapes[][2] = {{1, 1},     {3, 5},    {16, 16},  {64, 128},  {128, 128},
                                         {129, 130}, {17, 256}, {200, 48}, {144, 272}, {0, 8}};
  for (DType type : kTypes)
    for (DType format : {DType::kE4M3, DType::kE5M2})
      for (const auto& [rows, cols] : kShapes) {
        SCOPED_TRACE(describe(type, format, rows * cols) + ", " + std::to_string(rows) + " rows");
        const Data x = test::random_data(type, rows * cols, 7, 2.0f);
        Cast cast{.x = &x, .format = format, .rows = rows, .cols = cols, .args = options()};
        if (rows) cast.expect_equal();
        if (rows == 144) cast.offset = 1, cast.expect_equal();
      }
}

TEST(CudaCasts, Dequantize) {
  const float scale_inv = 0.3f;
  for (DType type : kTypes)
    for (DType out : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
      for (std::int64_t n : kSizes)
        for (std::int64_t offset : {0, 1}) {
          SCOPED_TRACE(describe(type, out, n));
          Data x = test::random_data(type, n, 8, 1e3f);
          if (n == 1000) test::add_specials(x);
          Data host(out, n, offset), device(out, n, offset);
          cpu::dequantize(
              {x.get(), type, n % 2 ? &scale_inv : nullptr, host.get(), out, n, nullptr});
          cuda::dequantize(
              {x.get(), type, n % 2 ? &scale_inv : nullptr, device.get(), out, n, nullptr});
          for (std::int64_t i = 0; i < n; ++i)
            ASSERT_TRUE(
                test::same(load_element(host.get(), out, i), load_element(device.get(), out, i)))
                << i;
        }
}

TEST(CudaCasts, Amax) {
  const float scale_inv = 0.3f;
  for (DType type : kTypes)
    for (std::int64_t n : kSizes) {
      SCOPED_TRACE(describe(type, type, n));
      Data x = test::random_data(type, n, 9);
      for (bool special : {false, true}) {
        if (special) test::add_specials(x);
        float host = -1, device = -1;
        cpu::amax({x.get(), type, n, &scale_inv, &host, nullptr});
        cuda::amax({x.get(), type, n, &scale_inv, &device, nullptr});
        EXPECT_TRUE(test::same(host, device)) << host << " and " << device;
      }
    }
}

TEST(CudaCasts, Accumulate) {
  const float x_scale_inv = 0.01f;
  for (DType type : kTypes)
    for (DType format : {DType::kE4M3, DType::kE5M2})
      for (std::int64_t n : kSizes)
        for (bool special : {false, true}) {
          SCOPED_TRACE(describe(type, format, n));
          Data x = test::random_data(type, n, 10), host = test::random_data(format, n, 11),
               device = host;
          if (special) test::add_specials(x);
          float host_scale = 0.002f, device_scale = 0.002f;
          cpu::accumulate(
              {x.get(), type, &x_scale_inv, host.get(), format, &host_scale, n, nullptr});
          cuda::accumulate(
              {x.get(), type, &x_scale_inv, device.get(), format, &device_scale, n, nullptr});
          EXPECT_EQ(host.difference(device), "equal");
          EXPECT_EQ(host_scale, device_scale);
        }
}

}  // namespace
}  // namespace fp8amp
