// Drivers of the CPU casts: scale sources, history of delayed scaling, outputs, accumulation,
// independence of the number of threads.
#include <fp8amp/numerics/scale.h>
#include <fp8amp/parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/element.h"
#include "kernels/quantize.h"

namespace fp8amp::test {
namespace {

using namespace fp8amp::kernels;
using numerics::compute_scale;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(),
                kInf = std::numeric_limits<float>::infinity();

std::vector<float> wave(std::int64_t n, float amplitude) {
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = amplitude * std::sin(0.37f * float(i)) * (i % 5 == 0 ? 1.0f : 0.01f);
  return x;
}

// A cast of FP32 to E4M3 with everything it returns.
struct Quantized {
  std::vector<std::uint8_t> codes;
  float scale_inv = -1.0f, amax = -1.0f, found_inf = 0.0f;

  explicit Quantized(const std::vector<float>& x, auto&&... change) : codes(x.size()) {
    QuantizeArgs a{};
    a.x = x.data();
    a.x_type = DType::kFloat32;
    a.y = codes.data();
    a.format = DType::kE4M3;
    a.scale_inv = &scale_inv;
    a.n = std::int64_t(x.size());
    a.amax = &amax;
    a.found_inf = &found_inf;
    (change(a), ...);
    cpu::quantize(a);
  }
  float scale() const { return 1.0f / scale_inv; }
};

TEST(Quantize, CurrentScaling) {
  for (ScaleRounding rounding : {ScaleRounding::kPowerOfTwo, ScaleRounding::kExact})
    for (int margin : {0, 3, -2}) {
      const std::vector<float> x = wave(1000, 3.0f);
      const Quantized q(x,
                        [&](QuantizeArgs& a) { a.scale_rounding = rounding, a.margin = margin; });
      float amax = 0;
      for (float v : x) amax = std::max(amax, std::fabs(v));
      EXPECT_EQ(q.amax, amax);
      const float scale = compute_scale(amax, 448.0f, rounding, margin);
      EXPECT_EQ(q.scale_inv, 1.0f / scale);
      EXPECT_EQ(q.found_inf, 0.0f);
      for (std::size_t i = 0; i < x.size(); ++i)
        ASSERT_EQ(q.codes[i], numerics::quantize_element<numerics::E4M3>(
                                  x[i], scale, Rounding::kNearest, Overflow::kSaturate, 0))
            << i;
    }
}

TEST(Quantize, ZeroTinyAndNonFinite) {
  for (float value : {0.0f, -0.0f}) {
    const Quantized zero(std::vector<float>(37, value));
    EXPECT_EQ(zero.scale_inv, 1.0f);
    EXPECT_EQ(zero.amax, 0.0f);
    for (std::uint8_t c : zero.codes) ASSERT_EQ(c & 0x7f, 0);
  }
  const Quantized tiny(
      std::vector<float>(16, 1e-37f));  // the scale is capped, its inverse is a normal number
  EXPECT_EQ(tiny.scale_inv, 0x1p-126f);
  EXPECT_EQ(numerics::decode<numerics::E4M3>(tiny.codes[0]) * tiny.scale_inv, 9 * 0x1p-126f);
  for (float bad : {kInf, -kInf, kNaN}) {
    std::vector<float> x = wave(100, 3.0f);
    x[77] = bad;
    for (Overflow overflow : {Overflow::kSaturate, Overflow::kNaN}) {
      const Quantized q(x, [&](QuantizeArgs& a) { a.overflow = overflow; });
      EXPECT_EQ(q.scale_inv, 1.0f);
      EXPECT_FALSE(numerics::is_finite(q.amax));
      EXPECT_EQ(q.found_inf, 1.0f);
      const bool nan = std::isnan(bad) || overflow == Overflow::kNaN;
      EXPECT_EQ(int(q.codes[77]), nan ? 0x7f : bad > 0 ? 0x7e : 0xfe);
    }
  }
  const Quantized empty(std::vector<float>{});
  EXPECT_EQ(empty.scale_inv, 1.0f);
  EXPECT_EQ(empty.amax, 0.0f);
}

TEST(Quantize, GivenAndKeptScale) {
  const std::vector<float> x = wave(100, 500.0f);
  const float scale = 3.0f;
  const Quantized given(x,
                        [&](QuantizeArgs& a) { a.source = ScaleSource::kGiven, a.scale = &scale; });
  EXPECT_EQ(given.scale_inv, 1.0f / 3.0f);
  const float keep = 0.003f;
  ASSERT_NE(1.0f / (1.0f / keep), keep);  // so a scale_inv written back would show
  const Quantized kept(
      x, [&](QuantizeArgs& a) { a.source = ScaleSource::kKeep, *a.scale_inv = keep; });
  EXPECT_EQ(kept.scale_inv, keep);
  EXPECT_EQ(kept.amax, given.amax);
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(given.codes[i], numerics::encode<numerics::E4M3>(x[i] * 3.0f));
    ASSERT_EQ(kept.codes[i], numerics::encode<numerics::E4M3>(x[i] * (1.0f / keep)));
  }
}

TEST(Quantize, FromScaledTensor) {  // FP16 codes with a scale_inv: no FP32 copy, amax of the values
  std::vector<std::uint16_t> x(100);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = numerics::float_to_half(float(i) - 50.0f);
  const float x_scale_inv = 0x1p-10f;
  const Quantized q(std::vector<float>(100), [&](QuantizeArgs& a) {
    a.x = x.data(), a.x_type = DType::kFloat16, a.x_scale_inv = &x_scale_inv;
  });
  EXPECT_EQ(q.amax, 50.0f * 0x1p-10f);
  EXPECT_EQ(q.scale(), 8192.0f);  // 448 / 0.0488 = 9175
  for (std::size_t i = 0; i < x.size(); ++i)
    ASSERT_EQ(q.codes[i], numerics::encode<numerics::E4M3>((float(i) - 50.0f) * 8.0f));
}

class Delayed {
 public:
  explicit Delayed(std::size_t window) : history(window + 2) {}
  Quantized cast(float amplitude, bool update = true) {
    return cast(std::vector<float>{amplitude, -amplitude / 2}, update);
  }
  Quantized cast(const std::vector<float>& x, bool update = true) {
    return Quantized(x, [&](QuantizeArgs& a) {
      a.source = ScaleSource::kDelayed, a.history = history.data(),
      a.history_length = std::int64_t(history.size()) - 2, a.update_history = update;
    });
  }
  std::vector<float> history;
};
float scale_for(float amax) { return compute_scale(amax, 448.0f, ScaleRounding::kPowerOfTwo); }

TEST(Quantize, DelayedScaling) {
  Delayed d(3);
  for (float amax : {1.0f, 100.0f, 2.0f})
    EXPECT_EQ(d.cast(amax).scale(), scale_for(amax));  // current until three entries are valid
  EXPECT_EQ(d.history, (std::vector<float>{3, scale_for(2), 2, 100, 1}));
  EXPECT_EQ(d.cast(4000.0f).scale(),
            scale_for(100.0f));  // from the window, not from the tensor: the large value saturates
  EXPECT_EQ(d.history, (std::vector<float>{3, scale_for(100), 4000, 2, 100}));
  EXPECT_EQ(int(d.cast(8000.0f).codes[0]),
            int(numerics::encode<numerics::E4M3>(8000 * scale_for(4000))));
  EXPECT_EQ(d.cast(1.0f).scale(), scale_for(8000.0f));
  EXPECT_EQ(d.cast(1.0f).scale(), scale_for(8000.0f));
  EXPECT_EQ(d.cast(1.0f).scale(), scale_for(8000.0f));
  EXPECT_EQ(d.cast(1.0f).scale(), scale_for(1.0f));  // 8000 has left the window
}

TEST(Quantize, DelayedWithoutUpdate) {
  Delayed d(2);
  const std::vector<float> fresh = d.history;
  EXPECT_EQ(d.cast(7.0f, false).scale(), scale_for(7.0f));  // no scale yet: current
  EXPECT_EQ(d.history, fresh);
  d.cast(10.0f);
  const std::vector<float> before = d.history;
  EXPECT_EQ(
      d.cast(7000.0f, false).scale(),
      scale_for(10.0f));  // the scale of the last update: a recomputation gives the same codes
  EXPECT_EQ(d.cast(std::vector<float>{kNaN}, false).scale(), scale_for(10.0f));
  EXPECT_EQ(d.history, before);
}

TEST(Quantize, DelayedDropsNonFinite) {
  Delayed d(2);
  d.cast(10.0f);
  d.cast(20.0f);
  const Quantized bad = d.cast(std::vector<float>{5.0f, kInf});
  EXPECT_EQ(bad.scale(), scale_for(20.0f));
  EXPECT_EQ(bad.found_inf, 1.0f);
  EXPECT_EQ(d.history[0], 0.0f);
  EXPECT_EQ(d.cast(std::vector<float>{kNaN}).scale(),
            scale_for(20.0f));  // warm-up again; no amax: the previous scale
  EXPECT_EQ(d.cast(3.0f).scale(), scale_for(3.0f));
  EXPECT_EQ(d.cast(6.0f).scale(), scale_for(6.0f));
  EXPECT_EQ(d.history, (std::vector<float>{2, scale_for(6), 6, 3}));
  Delayed zeros(1);
  EXPECT_EQ(zeros.cast(0.0f).scale(), 1.0f);
  zeros.cast(16.0f);
  zeros.cast(0.0f);
  EXPECT_EQ(zeros.cast(1.0f).scale(), scale_for(16.0f));  // a window of zeros: the previous scale
}

TEST(Quantize, Transposed) {
  const std::int64_t rows = 150, cols = 70;
  const std::vector<float> x = wave(rows * cols, 30.0f);
  std::vector<std::uint8_t> transposed(x.size());
  const Quantized plain(x), both(x, [&](QuantizeArgs&a) {
    a.transposed = transposed.data(), a.rows = rows, a.cols = cols;
  });
  EXPECT_EQ(both.codes, plain.codes);
  EXPECT_EQ(both.amax, plain.amax);
  EXPECT_EQ(both.scale_inv, plain.scale_inv);
  for (std::int64_t i = 0; i < rows * cols; ++i)
    ASSERT_EQ(transposed[std::size_t(i % cols * rows + i / cols)], plain.codes[std::size_t(i)])
        << i;
}

struct Sum {
  std::vector<std::uint8_t> codes;
  float scale_inv;
  std::vector<float> values() const {
    std::vector<float> v;
    for (std::uint8_t c : codes) v.push_back(numerics::decode<numerics::E4M3>(c) * scale_inv);
    return v;
  }
};
Sum accumulate(Sum sum, const std::vector<float>& x) {
  cpu::accumulate({x.data(), DType::kFloat32, nullptr, sum.codes.data(), DType::kE4M3,
                   &sum.scale_inv, std::int64_t(x.size()), nullptr});
  return sum;
}

TEST(Accumulate, ScaleIsThatOfTheExactSum) {
  const std::vector<float> x = wave(5000, 3.0f);
  const Quantized start(wave(5000, 200.0f));
  const Sum before{start.codes, start.scale_inv}, after = accumulate(before, x);
  const std::vector<float> a = before.values(), r = after.values();
  float amax = 0;
  for (std::size_t i = 0; i < x.size(); ++i) amax = std::max(amax, std::fabs(a[i] + x[i]));
  EXPECT_EQ(after.scale_inv, 1.0f / scale_for(amax));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float exact = a[i] + x[i];
    ASSERT_LE(std::fabs(r[i] - exact), std::max(std::fabs(exact) / 8, 0x1p-9f * after.scale_inv))
        << i;  // one step of the grid
  }
  EXPECT_EQ(accumulate(before, x).codes, after.codes);  // no hidden state
}

// 0.02 added 600 times to 8 (one step of E4M3 there is 1): nearest rounding would stay at 8 for
// ever.
TEST(Accumulate, SmallGradientsSurviveOnAverage) {
  const std::size_t n = 4096;
  Sum sum{std::vector<std::uint8_t>(n, numerics::encode<numerics::E4M3>(8.0f)), 1.0f};
  const std::vector<float> x(n, 0.02f);
  for (int i = 0; i < 600; ++i) sum = accumulate(sum, x);
  double mean = 0;
  for (float v : sum.values()) mean += v / double(n);
  EXPECT_NEAR(mean, 20.0, 0.3);
}

TEST(Accumulate, NonFiniteBecomesNaN) {
  for (float bad : {kInf, -kInf, kNaN}) {
    std::vector<float> x(40, 1.0f);
    x[33] = bad;
    const Sum sum = accumulate({std::vector<std::uint8_t>(40, 0x38), 1.0f}, x);
    EXPECT_EQ(int(sum.codes[33]), 0x7f);
    EXPECT_EQ(int(sum.codes[32]), 0x40);  // 2, at the scale 1 of a non-finite sum
    EXPECT_EQ(sum.scale_inv, 1.0f);
  }
  const Sum zero =
      accumulate({std::vector<std::uint8_t>(5, 0), 0.25f}, std::vector<float>(5, 0.0f));
  EXPECT_EQ(zero.codes, std::vector<std::uint8_t>(5, 0));
  EXPECT_EQ(zero.scale_inv, 1.0f);
}

// One small element moves: scale and maximum stay, and the dither of all the others changes.
TEST(Accumulate, KeyDependsOnEveryElement) {
  const std::vector<float> x = wave(5000, 3.0f);
  const Quantized start(wave(5000, 200.0f));
  const Sum before{start.codes, start.scale_inv}, base = accumulate(before, x);
  const auto count_changes = [&](const Sum& sum) {
    EXPECT_EQ(sum.scale_inv, base.scale_inv);
    std::int64_t n = 0;
    for (std::size_t i = 0; i < x.size(); ++i) n += sum.codes[i] != base.codes[i];
    return n;
  };
  std::vector<float> other_x = x;
  other_x[1234] *= 1.01f;
  EXPECT_GT(count_changes(accumulate(before, other_x)), 500);
  Sum other_before = before;
  other_before.codes[1234] ^= 1;
  EXPECT_GT(count_changes(accumulate(other_before, x)), 500);
  EXPECT_NE(accumulate_key(1, 2), accumulate_key(2, 1));
}

// Every result is the same however the range is cut, and whichever pool cuts it.
TEST(Threads, ResultsDoNotDependOnTheirNumber) {
  const std::int64_t n = 300001, rows = 643, cols = 466;
  const std::vector<float> x = wave(n, 100.0f);
  const auto run = [&] {
    std::vector<std::uint8_t> all, transposed(std::size_t(rows * cols));
    const Quantized stochastic(
        x, [](QuantizeArgs& a) { a.rounding = Rounding::kStochastic, a.key = 9; });
    const Quantized both(
        std::vector<float>(x.begin(), x.begin() + rows * cols),
        [&](QuantizeArgs& a) { a.transposed = transposed.data(), a.rows = rows, a.cols = cols; });
    const Sum sum = accumulate({stochastic.codes, stochastic.scale_inv}, x);
    std::vector<float> back(static_cast<std::size_t>(n));
    cpu::dequantize(
        {sum.codes.data(), DType::kE4M3, &sum.scale_inv, back.data(), DType::kFloat32, n, nullptr});
    float amax = 0;
    cpu::amax({back.data(), DType::kFloat32, n, &sum.scale_inv, &amax, nullptr});
    all.insert(all.end(), stochastic.codes.begin(), stochastic.codes.end());
    all.insert(all.end(), transposed.begin(), transposed.end());
    all.insert(all.end(), both.codes.begin(), both.codes.end());
    all.insert(all.end(), sum.codes.begin(), sum.codes.end());
    for (float v : {amax, sum.scale_inv, both.amax, back[12345], back.back()})
      all.insert(all.end(), 1, std::uint8_t(numerics::float_bits(v) >> 13));
    return all;
  };
  const int threads = num_threads();
  set_num_threads(1);
  const std::vector<std::uint8_t> expected = run();
  for (int count : {2, 3, 7}) {
    set_num_threads(count);
    ASSERT_EQ(run(), expected) << count;
  }
  set_num_threads(threads);
  set_parallel_for(
      [](std::int64_t begin, std::int64_t end, std::int64_t, const RangeFunction& body) {
        for (std::int64_t i = end; i > begin; --i) body(i - 1, i);  // one unit at a time, backwards
      });
  const std::vector<std::uint8_t> backwards = run();
  set_parallel_for(nullptr);
  ASSERT_EQ(backwards, expected);
}

}  // namespace
}  // namespace fp8amp::test
