// Sum of FP8 shards: against a scalar sum, the examples of the two-shot all-reduce, policies, bad
// input.
#include <fp8amp/numerics/random.h>
#include <fp8amp/parallel.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "bad_input.h"
#include "kernels/element.h"

namespace fp8amp {
namespace {

using kernels::load_element;

std::vector<ScaledTensor> random_shards(int count, std::int64_t n, DType type) {
  std::vector<ScaledTensor> shards;
  for (int s = 0; s < count; ++s) {
    const ScaledTensor t(tensor({n}, type), scalar(std::ldexp(1.0f + 0.1f * float(s), s % 5 - 4)));
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t r = numerics::random_word(77, std::uint64_t(s * n + i));
      const int largest = type == DType::kE4M3 ? 0x7e : 0x7b;
      t.payload().mutable_data_as<std::uint8_t>()[i] =
          std::uint8_t(int(r % std::uint32_t(largest + 1)) | int(r >> 24 & 0x80));
    }
    shards.push_back(t);
  }
  return shards;
}

std::vector<float> sums(const std::vector<ScaledTensor>& shards, float factor) {
  std::vector<float> result;
  for (std::int64_t i = 0; i < shards[0].numel(); ++i) {
    float sum = -0.0f;  // neutral, unlike 0
    for (const ScaledTensor& t : shards)
      sum += load_element(t.payload().data(), t.dtype(), i) * *t.scale_inv().data_as<float>();
    result.push_back(sum * factor);
  }
  return result;
}

// Codes and scale that `values` ask for.
void expect_cast_of(const std::vector<float>& values, float scale, const ScaledTensor& out) {
  EXPECT_EQ(*out.scale_inv().data_as<float>(), 1 / scale);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint8_t code = 0;
    kernels::store_code(&code, out.dtype(), 0, values[i], scale, Rounding::kNearest, Overflow::kNaN,
                        0);
    ASSERT_EQ(out.payload().data_as<std::uint8_t>()[i], code) << i << ": " << values[i];
  }
}

float value(const ScaledTensor& t, std::int64_t i = 0) {
  return load_element(t.payload().data(), t.dtype(), i) * *t.scale_inv().data_as<float>();
}
ScaledTensor one_value(float x, DType format = DType::kE4M3) {
  const Tensor plain = tensor({1});
  *plain.mutable_data_as<float>() = x;
  const ScaledTensor t = scaled({1}, format);
  quantize(plain, t);
  return t;
}

TEST(SumShards, EqualsTheScalarSum) {
  for (DType in : {DType::kE4M3, DType::kE5M2})
    for (DType format : {DType::kE4M3, DType::kE5M2})
      for (int count : {1, 2, 3, 17})
        for (std::int64_t n : {0, 1, 15, 16, 17, 2048, 5003}) {
          const auto shards = random_shards(count, n, in);
          const auto values = sums(shards, 1.0f / float(count));
          float largest = 0;
          for (float v : values) largest = std::max(largest, std::fabs(v));
          const ScaledTensor out = scaled({n}, format);
          SumShardsOptions o{.factor = 1.0f / float(count), .amax = scalar(-1)};
          sum_shards(shards, out, o);
          expect_cast_of(
              values, numerics::compute_scale(largest, format_max(format), o.scale_rounding), out);
          EXPECT_EQ(*o.amax.data_as<float>(), largest);
          o.scale = scalar(0.75f);  // and then values that saturate
          sum_shards(shards, out, o);
          expect_cast_of(values, 0.75f, out);
          o.scale = {}, o.bound = scalar(3 * largest), o.scale_rounding = ScaleRounding::kExact;
          sum_shards(shards, out, o);
          expect_cast_of(
              values,
              numerics::compute_scale(3 * largest, format_max(format), ScaleRounding::kExact), out);
          EXPECT_EQ(*o.amax.data_as<float>(), largest);
        }
}

TEST(SumShards, ThreadsDoNotChangeAnyBit) {
  const auto shards = random_shards(5, 100003, DType::kE4M3);
  const ScaledTensor one = scaled({100003}), many = scaled({100003});
  const int before = num_threads();
  set_num_threads(1), sum_shards(shards, one);
  set_num_threads(7), sum_shards(shards, many);
  set_num_threads(before);
  EXPECT_EQ(std::memcmp(one.payload().data(), many.payload().data(), 100003), 0);
}

// Averages of ranks whose scales differ.
TEST(SumShards, AveragesOfRanks) {
  const ScaledTensor out = scaled({1});
  const auto average = [&](const std::vector<ScaledTensor>& ranks) {
    sum_shards(ranks, out, {.factor = 1.0f / float(ranks.size())});
    return value(out);
  };
  EXPECT_EQ(average({one_value(1), one_value(3)}), 2.0f);
  EXPECT_EQ(average({one_value(0), one_value(3)}), 1.5f);
  EXPECT_EQ(average(std::vector<ScaledTensor>(64, one_value(1))), 1.0f);
  EXPECT_NEAR(average({one_value(1.01f), one_value(2.99f)}), 2.0f, 1.0f / 16);
  // 64 large gradients and no saturation on the way, in E5M2 as in E4M3
  EXPECT_EQ(average(std::vector<ScaledTensor>(64, one_value(57344, DType::kE5M2))), 57344.0f);
}

// The order of the ranks is the order of the additions.
TEST(SumShards, InRankOrder) {
  const ScaledTensor out = scaled({1}), big = with_scale_inv(one_value(1), 0x1p20f),
                     minus = with_scale_inv(one_value(-1), 0x1p20f),
                     tiny = with_scale_inv(one_value(1), 0x1p-20f);
  const ScaledTensor first[] = {big, minus, tiny}, last[] = {big, tiny, minus};
  sum_shards(first, out);
  EXPECT_GT(value(out), 0.0f);
  sum_shards(last, out);
  EXPECT_EQ(value(out), 0.0f);
}

TEST(SumShards, NonFiniteBecomesNaN) {
  for (std::uint8_t code : {0x7c, 0xfc, 0x7f}) {  // Inf, -Inf, NaN of E5M2
    auto shards = random_shards(3, 40, DType::kE5M2);
    shards[1].payload().mutable_data_as<std::uint8_t>()[33] = code;
    const ScaledTensor out = scaled({40});
    SumShardsOptions o{.amax = scalar(0), .found_inf = scalar(0)};
    sum_shards(shards, out, o);
    EXPECT_TRUE(std::isnan(value(out, 33)));
    EXPECT_TRUE(std::isfinite(value(out, 32)));
    EXPECT_FALSE(std::isfinite(*o.amax.data_as<float>()));
    EXPECT_EQ(*o.found_inf.data_as<float>(), 1.0f);
    EXPECT_EQ(*out.scale_inv().data_as<float>(), 1.0f);
  }
  // a sum beyond FP32 too
  const std::vector<ScaledTensor> huge(2, with_scale_inv(one_value(448), 0x1p120f));
  const ScaledTensor out = scaled({1});
  SumShardsOptions o{.found_inf = scalar(0)};
  sum_shards(huge, out, o);
  EXPECT_TRUE(std::isnan(value(out)));
  EXPECT_EQ(*o.found_inf.data_as<float>(), 1.0f);
  // found_inf is raised, never cleared
  sum_shards(std::vector<ScaledTensor>{one_value(1)}, out, o);
  EXPECT_EQ(*o.found_inf.data_as<float>(), 1.0f);
}

TEST(SumShards, BadInput) {
  const ScaledTensor a = scaled({8}), out = scaled({8});
  const auto refused = [&](const std::vector<ScaledTensor>& shards, const ScaledTensor& to,
                           const SumShardsOptions& o, const std::vector<std::string>& parts) {
    out.payload().mutable_data_as<std::uint8_t>()[0] = 5;
    expect_error([&] { sum_shards(shards, to, o); }, parts);
    EXPECT_EQ(out.payload().data_as<std::uint8_t>()[0], 5);
  };
  refused({}, out, {}, {"sum_shards", "shards", "1 to 1024", "0"});
  refused(std::vector<ScaledTensor>(1025, a), out, {}, {"shards", "1025"});
  refused({a, scaled({9})}, out, {}, {"sum_shards", "shards[1]", "[8]", "[9]"});
  refused({a, scaled({8}, DType::kE5M2)}, out, {}, {"shards[1]", "float8_e4m3", "float8_e5m2"});
  refused({scaled({8}, DType::kFloat16)}, out, {}, {"shards[0]", "float16"});
  refused({a, a.payload()}, out, {}, {"shards[1]", "scale_inv"});
  refused({a}, scaled({8}, DType::kFloat16), {}, {"out", "float16"});
  refused({a, out}, out, {}, {"out", "overlap", "shards[1]"});
  for (float factor : {0.0f, -1.0f, NAN, INFINITY})
    refused({a}, out, {.factor = factor}, {"sum_shards", "factor", "positive"});
  refused({a}, out, {.scale = scalar(1), .bound = scalar(1)}, {"scale and bound"});
  refused({a}, out, {.scale = scalar(0)}, {"scale", "2^-126"});
  refused({a}, out, {.bound = tensor({2})}, {"bound", "one element"});
  refused({a}, out, {.amax = tensor({2})}, {"amax", "one element"});
}

}  // namespace
}  // namespace fp8amp
