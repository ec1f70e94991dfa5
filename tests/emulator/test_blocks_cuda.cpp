// Casts with a scale for each row or block: the CPU backend against a scalar definition written out
// here, and the CUDA backend, on the emulator, against the CPU backend, bit for bit.
#include <fp8amp/numerics/scale.h>
#include <fp8amp/parallel.h>
#include <fp8amp/scaled_tensor.h>

#include <algorithm>

#include "kernels/blocks.h"
#include "tests/emulator/cuda_data.h"
#include "tests/emulator/cuda_emu.h"
#include "tests/emulator/fake_runtime.h"

namespace fp8amp {
namespace {

using namespace kernels;
using test::Data;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr ScaleGranularity kGranularities[] = {
    ScaleGranularity::kRow, ScaleGranularity::kBlock1x128, ScaleGranularity::kBlock128x128};

// A matrix of codes and its scales; both begin as a canary.
struct Side {
  Data y, scales;
  Side(DType format, const std::vector<std::int64_t>& scale_shape, std::int64_t n,
       std::int64_t offset)
      : y(format, n, offset), scales(DType::kFloat32, count(scale_shape)) {
    std::fill_n(y.as<std::uint8_t>(), y.size(), std::uint8_t(0x55));
    std::fill_n(scales.as<float>(), scales.size(), -1.0f);
  }
  static std::int64_t count(const std::vector<std::int64_t>& shape) {
    std::int64_t n = 1;
    for (std::int64_t s : shape) n *= s;
    return n;
  }
};

struct Case {
  std::int64_t rows, cols;
  DType x_type = DType::kFloat32, format = DType::kE4M3;
  ScaleGranularity granularity = ScaleGranularity::kBlock1x128;
  bool out = true, transposed = true;
  bool special = false, scaled = false;
  bool rising = false;  // the last element of a row is its largest
  std::int64_t x_offset = 0, y_offset = 0;
  ScaleRounding scale_rounding = ScaleRounding::kPowerOfTwo;
  int margin = 0;
  Overflow overflow = Overflow::kSaturate;
};

std::string describe(const Case& c) {
  return std::to_string(c.rows) + "x" + std::to_string(c.cols) + " " + name(c.x_type) + " to " +
         name(c.format) + ", " + name(c.granularity) + (c.out ? ", out" : "") +
         (c.transposed ? ", transposed" : "");
}

std::vector<std::int64_t> scale_shape(ScaleGranularity g, std::int64_t rows, std::int64_t k) {
  const auto blocks = [](std::int64_t n) { return (n + 127) / 128; };
  if (g == ScaleGranularity::kRow) return {rows};
  if (g == ScaleGranularity::kBlock1x128) return {blocks(k), rows};
  return {blocks(rows), (blocks(k) + 3) / 4 * 4};
}

struct Written {
  Side out, transposed;
  float found_inf = 0.0f;
};

const float kFactor = 0.37f;

// Rows and blocks of very different sizes, some of zeros.
Data input(const Case& c) {
  Data x = test::random_data(c.x_type, c.rows * c.cols, 1, 8.0f, c.x_offset);
  for (std::int64_t r = 0; r < c.rows; ++r)
    for (std::int64_t k = 0; k < c.cols; ++k) {
      const std::int64_t i = r * c.cols + k;
      const float size = r % 7 == 3 ? 0.0f : std::ldexp(1.0f, int(r % 5) - int(k / 100 % 3));
      store_element(x.get(), c.x_type, i, load_element(x.get(), c.x_type, i) * size);
    }
  if (c.rising)
    for (std::int64_t r = 0; r < c.rows; ++r)
      store_element(x.get(), c.x_type, (r + 1) * c.cols - 1, 1e4f);
  if (c.special)
    for (std::int64_t i = 5; i < x.size(); i += 1013)
      store_element(x.get(), c.x_type, i, i % 2 ? NAN : -INFINITY);
  return x;
}

Written run(const Case& c, const Data& x, void (*quantize)(const QuantizeBlocksArgs&),
            void* stream = nullptr) {
  const std::int64_t n = c.rows * c.cols;
  Written w{{c.format, scale_shape(c.granularity, c.rows, c.cols), n, c.y_offset},
            {c.format, scale_shape(c.granularity, c.cols, c.rows), n, c.y_offset}};
  QuantizeBlocksArgs a{};
  a.x = x.get();
  a.x_type = c.x_type;
  a.x_scale_inv = c.scaled ? &kFactor : nullptr;
  a.rows = c.rows;
  a.cols = c.cols;
  a.format = c.format;
  a.granularity = c.granularity;
  if (c.out) a.out = {w.out.y.as<std::uint8_t>(), w.out.scales.as<float>()};
  if (c.transposed)
    a.transposed = {w.transposed.y.as<std::uint8_t>(), w.transposed.scales.as<float>()};
  a.scale_rounding = c.scale_rounding;
  a.margin = c.margin;
  a.overflow = c.overflow;
  a.found_inf = &w.found_inf;
  a.stream = stream;
  quantize(a);
  return w;
}

// The definition of one output, with the layouts of cuBLASLt written out: value(r, k) of [rows, k].
template <class Value>
void define(const Case& c, std::int64_t rows, std::int64_t cols, const Value& value, Side& side) {
  const std::int64_t height = c.granularity == ScaleGranularity::kBlock128x128 ? 128 : 1,
                     width = c.granularity == ScaleGranularity::kRow
                                 ? std::max<std::int64_t>(cols, 1)
                                 : 128;
  std::fill_n(side.scales.as<float>(), side.scales.size(), 1.0f);
  for (std::int64_t r0 = 0; r0 < rows; r0 += height)
    for (std::int64_t k0 = 0; k0 < cols; k0 += width) {
      const std::int64_t r1 = std::min(rows, r0 + height), k1 = std::min(cols, k0 + width);
      float amax = 0;
      bool finite = true;
      for (std::int64_t r = r0; r < r1; ++r)
        for (std::int64_t k = k0; k < k1; ++k) {
          finite = finite && std::isfinite(value(r, k));
          if (std::abs(value(r, k)) > amax) amax = std::abs(value(r, k));
        }
      float scale = 1.0f;
      if (finite && amax > 0) {
        scale = format_max(c.format) * std::ldexp(1.0f, -c.margin) / amax;
        if (c.scale_rounding == ScaleRounding::kPowerOfTwo)
          scale = std::ldexp(1.0f, std::ilogb(scale));
        scale = std::min(scale, std::ldexp(1.0f, 126));
      }
      std::int64_t at = r0;
      if (c.granularity == ScaleGranularity::kBlock1x128) at = k0 / 128 * rows + r0;
      if (c.granularity == ScaleGranularity::kBlock128x128)
        at = r0 / 128 * (((cols + 127) / 128 + 3) / 4 * 4) + k0 / 128;
      side.scales.as<float>()[at] = 1.0f / scale;
      for (std::int64_t r = r0; r < r1; ++r)
        for (std::int64_t k = k0; k < k1; ++k)
          store_code(side.y.get(), c.format, r * cols + k, value(r, k), scale, Rounding::kNearest,
                     c.overflow, 0);
    }
}

Written defined(const Case& c, const Data& x) {
  const std::int64_t n = c.rows * c.cols;
  Written w{{c.format, scale_shape(c.granularity, c.rows, c.cols), n, c.y_offset},
            {c.format, scale_shape(c.granularity, c.cols, c.rows), n, c.y_offset}};
  const auto value = [&](std::int64_t r, std::int64_t k) {
    const float v = load_element(x.get(), c.x_type, r * c.cols + k);
    return c.scaled ? v * kFactor : v;
  };
  if (c.out) define(c, c.rows, c.cols, value, w.out);
  if (c.transposed)
    define(
        c, c.cols, c.rows, [&](std::int64_t r, std::int64_t k) { return value(k, r); },
        w.transposed);
  for (std::int64_t i = 0; i < n; ++i)
    if (!std::isfinite(value(0, i))) w.found_inf = 1.0f;
  return w;
}

void expect_same(const Written& a, const Written& b, const char* which) {
  EXPECT_EQ(a.out.y.difference(b.out.y), "equal") << which;
  EXPECT_EQ(a.out.scales.difference(b.out.scales), "equal") << which;
  EXPECT_EQ(a.transposed.y.difference(b.transposed.y), "equal") << which;
  EXPECT_EQ(a.transposed.scales.difference(b.transposed.scales), "equal") << which;
  EXPECT_EQ(a.found_inf, b.found_inf) << which;
}

void check(const Case& c) {
  SCOPED_TRACE(describe(c));
  const Data x = input(c);
  const Written host = run(c, x, cpu::quantize_blocks);
  expect_same(defined(c, x), host, "CPU");
  expect_same(host, run(c, x, cuda::quantize_blocks), "CUDA");
}

constexpr std::int64_t kSizes[] = {1, 3, 127, 128, 129, 1000};

TEST(Blocks, OddSizes) {
  int next = 0;
  for (ScaleGranularity g : kGranularities)
    for (std::int64_t rows : kSizes)
      for (std::int64_t cols : kSizes) {
        if (rows * cols > 200000) continue;
        Case c{.rows = rows, .cols = cols, .granularity = g};
        c.x_type = kTypes[next % 3];
        c.format = next % 2 ? DType::kE4M3 : DType::kE5M2;
        c.special = next++ % 5 == 0;
        check(c);
      }
}

TEST(Blocks, EveryTypeFormatAndOutput) {
  for (ScaleGranularity g : kGranularities)
    for (DType type : kTypes)
      for (DType format : {DType::kE4M3, DType::kE5M2})
        for (int which = 1; which < 4; ++which)
          check({.rows = 144,
                 .cols = 272,
                 .x_type = type,
                 .format = format,
                 .granularity = g,
                 .out = (which & 1) != 0,
                 .transposed = (which & 2) != 0});
}

TEST(Blocks, Policies) {
  for (ScaleGranularity g : kGranularities)
    for (Overflow overflow : {Overflow::kSaturate, Overflow::kNaN})
      for (ScaleRounding rounding : {ScaleRounding::kPowerOfTwo, ScaleRounding::kExact})
        for (bool special : {false, true})
          check({.rows = 48,
                 .cols = 160,
                 .x_type = DType::kFloat16,
                 .granularity = g,
                 .special = special,
                 .scaled = true,
                 .scale_rounding = rounding,
                 .margin = 2,
                 .overflow = overflow});
}

TEST(Blocks, Unaligned) {
  for (ScaleGranularity g : kGranularities)
    for (DType type : kTypes)
      for (std::int64_t offset : {1, 3}) {
        check({.rows = 32, .cols = 256, .x_type = type, .granularity = g, .x_offset = offset});
        check({.rows = 32, .cols = 256, .x_type = type, .granularity = g, .y_offset = offset});
      }
}

// Held by a warp, by a block, and read twice.
TEST(Blocks, LongRows) {
  for (std::int64_t cols : {1024, 1040, 1025, 8192, 8208, 9000})
    for (DType type : {DType::kFloat32, DType::kBFloat16})
      check({.rows = 9,
             .cols = cols,
             .x_type = type,
             .granularity = ScaleGranularity::kRow,
             .transposed = false,
             .rising = cols % 16 == 0});
}

TEST(Blocks, AnySchedule) {
  for (ScaleGranularity g : kGranularities)
    emu::for_each_schedule([&] {
      check({.rows = 200, .cols = 300, .x_type = DType::kBFloat16, .granularity = g});
      check({.rows = 20,
             .cols = 1200,
             .x_type = DType::kBFloat16,
             .granularity = g,
             .special = true});
    });
}

TEST(Blocks, EmptySizes) {
  for (ScaleGranularity g : kGranularities)
    for (const auto& [rows, cols] : {std::pair{0, 8}, {8, 0}, {0, 0}, {0, 300}})
      check({.rows = rows, .cols = cols, .granularity = g});
}

TEST(Blocks, TinyAndHugeValues) {
  for (ScaleGranularity g : kGranularities) {
    Case c{.rows = 130, .cols = 140, .granularity = g};
    Data x(DType::kFloat32, c.rows * c.cols);
    for (std::int64_t i = 0; i < x.size(); ++i)
      x.as<float>()[i] = std::ldexp(i % 3 ? 1.25f : -1.0f, int(i / c.cols * 2) - 140);
    const Written host = run(c, x, cpu::quantize_blocks);
    expect_same(defined(c, x), host, "CPU");
    expect_same(host, run(c, x, cuda::quantize_blocks), "CUDA");
  }
}

TEST(Blocks, InfinitiesWithoutNaN) {
  for (ScaleGranularity g : kGranularities)
    for (Overflow overflow : {Overflow::kSaturate, Overflow::kNaN}) {
      const Case c{.rows = 20, .cols = 300, .granularity = g, .overflow = overflow};
      Data x = input(c);
      x.as<float>()[301] = INFINITY, x.as<float>()[4000] = -INFINITY;
      const Written host = run(c, x, cpu::quantize_blocks);
      EXPECT_EQ(host.found_inf, 1.0f);
      expect_same(defined(c, x), host, "CPU");
      expect_same(host, run(c, x, cuda::quantize_blocks), "CUDA");
    }
}

TEST(Blocks, ThreadsDoNotMatter) {
  for (ScaleGranularity g : kGranularities) {
    const Case c{.rows = 1000, .cols = 777, .granularity = g};
    const Data x = input(c);
    set_num_threads(1);
    const Written one = run(c, x, cpu::quantize_blocks);
    set_num_threads(4);
    expect_same(one, run(c, x, cpu::quantize_blocks), "4 threads");
  }
}

// A capture allocates nothing, and its replay reads x anew.
TEST(Blocks, CapturedAndReplayed) {
  for (ScaleGranularity g : kGranularities) {
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    const Case c{.rows = 130, .cols = 272, .granularity = g};
    Data x = input(c);
    (void)run(c, x, cuda::quantize_blocks, stream);  // makes the memory of the stream
    const Data now = x;
    std::fill_n(x.as<float>(), x.size(), 1.0f);
    const std::int64_t allocations = fake_cuda::counters().allocations;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    const Written w = run(c, x, cuda::quantize_blocks, stream);
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    EXPECT_EQ(fake_cuda::counters().allocations, allocations);
    std::memcpy(x.get(), now.get(), std::size_t(x.size()) * 4);
    ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    const Written host = run(c, x, cpu::quantize_blocks);
    EXPECT_EQ(host.out.y.difference(w.out.y), "equal");
    EXPECT_EQ(host.transposed.y.difference(w.transposed.y), "equal");
    EXPECT_EQ(host.transposed.scales.difference(w.transposed.scales), "equal");
    (void)cudaGraphExecDestroy(executable);
    (void)cudaGraphDestroy(graph);
    (void)cudaStreamDestroy(stream);
  }
}

TEST(Blocks, Dequantize) {
  for (ScaleGranularity g : kGranularities)
    for (DType format : {DType::kE4M3, DType::kE5M2})
      for (DType type : kTypes)
        for (const auto& [rows, cols] :
             {std::pair{1, 1}, {3, 127}, {129, 160}, {130, 1000}, {0, 5}})
          for (std::int64_t offset : {0, 1}) {
            const Case c{.rows = rows,
                         .cols = cols,
                         .format = format,
                         .granularity = g,
                         .transposed = false,
                         .special = cols == 1000};
            SCOPED_TRACE(describe(c));
            const Data x = input(c);
            Written w = run(c, x, cpu::quantize_blocks);
            Data host(type, rows * cols, offset), device(type, rows * cols, offset);
            DequantizeBlocksArgs a{w.out.y.as<std::uint8_t>(),
                                   format,
                                   w.out.scales.as<float>(),
                                   g,
                                   rows,
                                   cols,
                                   host.get(),
                                   type,
                                   nullptr};
            cpu::dequantize_blocks(a);
            a.y = device.get();
            cuda::dequantize_blocks(a);
            const std::int64_t L4 = ((cols + 127) / 128 + 3) / 4 * 4;
            for (std::int64_t r = 0; r < rows; ++r)
              for (std::int64_t k = 0; k < cols; ++k) {
                const std::int64_t i = r * cols + k;
                const float scale =
                    w.out.scales
                        .as<float>()[g == ScaleGranularity::kRow          ? r
                                     : g == ScaleGranularity::kBlock1x128 ? k / 128 * rows + r
                                                                          : r / 128 * L4 + k / 128];
                float wanted = 0;
                store_element(&wanted, type, 0, load_element(w.out.y.get(), format, i) * scale);
                wanted = load_element(&wanted, type, 0);
                ASSERT_TRUE(test::same(wanted, load_element(host.get(), type, i))) << i;
                ASSERT_TRUE(test::same(wanted, load_element(device.get(), type, i))) << i;
              }
          }
}

}  // namespace
}  // namespace fp8amp
