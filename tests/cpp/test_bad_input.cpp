// Every public function refuses bad input with one sentence that names operation, argument and the
// value seen, and changes nothing.
#include <cmath>
#include <cstring>
#include <limits>

#include "bad_input.h"

namespace fp8amp {
namespace {

TEST(BadInput, Tensor) {
  float x[4] = {};
  expect_error([&] { Tensor::view(static_cast<void*>(nullptr), DType::kFloat32, {2}); },
               {"Tensor::view", "data", "nullptr"});
  expect_error(
      [&] {
        Tensor::view(static_cast<void*>(reinterpret_cast<char*>(x) + 1), DType::kFloat32, {2});
      },
      {"aligned", "float32"});
  expect_error([&] { tensor({2, -1}); }, {"shape", "[2, -1]"});
  expect_error(
      [&] {
        tensor({std::int64_t{1} << 40, std::int64_t{1} << 40});
      },
      {"shape", "memory"});
  expect_error([&] { Tensor::allocate({2}, DType::kFloat32, cuda(0)); }, {"device", "cuda"});
  expect_error(
      [&] { Tensor::view(static_cast<const void*>(x), DType::kFloat32, {4}).mutable_data(); },
      {"read-only", "float32[4]"});
  EXPECT_EQ(Tensor::view(nullptr, DType::kFloat32, {0, 3}).numel(), 0);
  expect_error([&] { Tensor::view(nullptr, DType::kFloat32, {2}); }, {"data", "nullptr"});
}

TEST(BadInput, SizesAndHistories) {
  for (std::int64_t i : {-1, 2, 5})
    expect_error([&] { tensor({2, 3}).size(i); }, {"Tensor::size", "[2, 3]", std::to_string(i)});
  for (std::int64_t n : {std::int64_t{0}, std::numeric_limits<std::int64_t>::max()})
    expect_error([&] { allocate_history(n); }, {"allocate_history", "history", std::to_string(n)});
}

TEST(BadInput, EmptyShapesOfAnySize) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  for (const auto& shape :
       {std::vector<std::int64_t>{kHuge, 0}, {0, kHuge}, {kHuge, kHuge, 0}, {0, kHuge, kHuge}})
    EXPECT_EQ(tensor(shape).numel(), 0);
  expect_error([&] { tensor({0, -1}); }, {"shape", "[0, -1]"});
  for (const auto& [rows, cols] : {std::pair{kHuge, std::int64_t{0}}, {std::int64_t{0}, kHuge}}) {
    const ScaledTensor x = scaled({rows, cols}), y = scaled({rows, cols});
    quantize(x, y);
    quantize_transpose(x, y, tensor({cols, rows}, DType::kE4M3));
  }
}

TEST(BadInput, MovedFromTensorIsUndefined) {
  Tensor a = tensor({4}), b = std::move(a);
  EXPECT_FALSE(a.defined());  // NOLINT: that is the question
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(a.numel(), 0);
  EXPECT_EQ(b.numel(), 4);
  a = std::move(b);
  EXPECT_FALSE(b.defined());  // NOLINT
  EXPECT_EQ(a.numel(), 4);
  const Tensor c = a;
  EXPECT_EQ(c.data(), a.data());
}

TEST(BadInput, DevicesAreNamedWithTheirIndex) {
  float memory[4] = {};
  const Tensor third =
      Tensor::view(static_cast<void*>(memory), DType::kFloat32, {4}, {DeviceType::kCpu, 3});
  expect_error([&] { dequantize(scaled({4}), third); }, {"out", "be on cpu, got cpu:3"});
  EXPECT_EQ(third.to_string(), "float32[4] on cpu:3");
  EXPECT_EQ(tensor({4}).to_string(), "float32[4] on cpu");
  EXPECT_EQ(Tensor::view(static_cast<void*>(memory), DType::kFloat32, {4}, cuda(1)).to_string(),
            "float32[4] on cuda:1");
}

TEST(BadInput, Quantize) {
  const Tensor x = tensor({4, 8});
  expect_error([&] { quantize(Tensor(), scaled({4, 8})); }, {"quantize", "x", "undefined"});
  expect_error([&] { quantize(x, scaled({8, 4})); }, {"quantize", "out", "[4, 8]", "[8, 4]"});
  expect_error(
      [&] {
        quantize(x, ScaledTensor(tensor({4, 8})));
      },
      {"quantize", "out", "float8_e4m3", "float32"});
  expect_error(
      [&] {
        quantize(x, ScaledTensor(tensor({4, 8}, DType::kE4M3)));
      },
      {"quantize", "out", "scale_inv"});
  expect_error(
      [&] {
        quantize(tensor({4, 8}, DType::kE4M3), scaled({4, 8}));
      },
      {"quantize", "x", "scale_inv", "plain float8"});
  expect_error([&] { quantize(x, scaled({4, 8}), {.margin = 65}); }, {"quantize", "margin", "65"});
  expect_error(
      [&] {
        quantize(x, scaled({4, 8}), {.scale = tensor({2})});
      },
      {"quantize", "scale", "[2]"});
  for (const auto& [value, text] : {std::pair{0.0f, "0"},
                                    {-2.0f, "-2"},
                                    {INFINITY, "inf"},
                                    {NAN, "nan"},
                                    {0x1p-127f, "e-39"},
                                    {0x1p127f, "e+38"}}) {
    const Tensor scale = tensor({});
    *scale.mutable_data_as<float>() = value;
    const ScaledTensor out = scaled({4, 8});
    *out.scale_inv().mutable_data_as<float>() = 8.0f;
    expect_error([&] { quantize(x, out, {.scale = scale}); }, {"quantize", "scale", text});
    EXPECT_EQ(*out.scale_inv().data_as<float>(), 8.0f) << value;
    const ScaledTensor kept = with_scale_inv(out, value);
    expect_error([&] { quantize(x, kept, {.keep_scale = true}); },
                 {"quantize", "out.scale_inv", text});
    expect_error(
        [&] {
          quantize_transpose(x, kept, tensor({8, 4}, DType::kE4M3), {.keep_scale = true});
        },
        {"quantize_transpose", "out.scale_inv", text});
  }
  expect_error(
      [&] {
        quantize(x, scaled({4, 8}), {.scale = tensor({}), .keep_scale = true});
      },
      {"quantize", "at most one"});
  expect_error(
      [&] {
        quantize(x, scaled({4, 8}), {.history = tensor({2})});
      },
      {"quantize", "history", "[2]"});
  expect_error(
      [&] {
        quantize(x, scaled({4, 8}), {.amax = tensor({}, DType::kFloat16)});
      },
      {"quantize", "amax", "float16"});
  const ScaledTensor same = scaled({4, 8});
  expect_error([&] { quantize(same, same); }, {"quantize", "out", "overlap"});
  const Tensor nothing =
      Tensor::view(static_cast<char*>(same.payload().mutable_data()) + 16, DType::kE4M3, {8, 0});
  gemm(same, scaled({8, 0}), Tensor::view(nothing.mutable_data(), DType::kFloat16, {4, 0}));
}

TEST(BadInput, QuantizeTranspose) {
  const Tensor x = tensor({4, 8}), transposed = tensor({8, 4}, DType::kE4M3);
  expect_error([&] { quantize_transpose(tensor({4}), scaled({4}), transposed); },
               {"quantize_transpose", "x", "2 dimensions"});
  expect_error(
      [&] {
        quantize_transpose(x, scaled({4, 8}), tensor({4, 8}, DType::kE4M3));
      },
      {"transposed", "[8, 4]", "[4, 8]"});
  expect_error(
      [&] {
        quantize_transpose(x, scaled({4, 8}, DType::kE5M2), transposed);
      },
      {"transposed", "float8_e5m2", "float8_e4m3"});
  expect_error(
      [&] {
        quantize_transpose(x, scaled({4, 8}), transposed, {.rounding = Rounding::kStochastic});
      },
      {"rounding", "nearest"});
  expect_error(
      [&] {
        quantize_transpose(x, scaled({4, 8}, DType::kFloat16), transposed);
      },
      {"out", "float16"});
}

TEST(BadInput, DequantizeAmaxAccumulate) {
  expect_error([&] { dequantize(scaled({4}), tensor({4}, DType::kE4M3)); },
               {"dequantize", "out", "float8_e4m3"});
  expect_error([&] { dequantize(scaled({4}), tensor({5})); }, {"dequantize", "out", "[5]"});
  expect_error([&] { amax(tensor({4}), tensor({2})); }, {"amax", "out", "[2]"});
  const Tensor codes = tensor({4}, DType::kE4M3), out = tensor({});
  expect_error(
      [&] {
        amax({codes, tensor({}, DType::kFloat16)}, out);
      },
      {"amax", "x.scale_inv", "float16"});
  expect_error([&] { amax({codes, tensor({0})}, out); }, {"amax", "x.scale_inv", "[0]"});
  const Tensor elsewhere = Tensor::view(out.mutable_data(), DType::kFloat32, {}, cuda(0));
  expect_error([&] { amax({codes, elsewhere}, out); }, {"amax", "x.scale_inv", "cuda:0"});
  EXPECT_NO_THROW(amax(codes, out));
  expect_error([&] { accumulate(tensor({4}), ScaledTensor(tensor({4}))); },
               {"accumulate", "sum", "float32"});
  expect_error([&] { accumulate(tensor({4}), scaled({3})); }, {"accumulate", "[4]", "[3]"});
}

TEST(BadInput, AccumulateUnderABadScale) {
  const Tensor x = tensor({4});
  x.mutable_data_as<float>()[1] = 3.0f;
  for (const auto& [value, text] :
       {std::pair{0.0f, "got 0"}, {-1.0f, "got -1"}, {NAN, "nan"}, {INFINITY, "inf"}}) {
    const ScaledTensor sum = with_scale_inv(scaled({4}), value);
    expect_error([&] { accumulate(x, sum); }, {"accumulate", "sum.scale_inv", "positive", text});
    EXPECT_EQ(std::memcmp(&value, sum.scale_inv().data(), sizeof value), 0);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(sum.payload().data_as<std::uint8_t>()[i], 0);
  }
  for (float good : {0x1p-149f, 0.3f, 3e38f}) {  // momentum and clipping move a scale anywhere
    const ScaledTensor sum = with_scale_inv(scaled({4}), good);
    accumulate(x, sum);
    EXPECT_EQ(*sum.scale_inv().data_as<float>(), 0x1p-7f);
  }
}

TEST(BadInput, HistoryCounts) {
  const Tensor x = tensor({4, 8}), history = allocate_history(2);
  for (const auto& [value, text] :
       {std::pair{-1.0f, "-1"}, {0.5f, "0.5"}, {NAN, "nan"}, {INFINITY, "inf"}}) {
    *history.mutable_data_as<float>() = value;
    for (bool update : {true, false}) {
      const QuantizeOptions o{.history = history, .update_history = update};
      expect_error([&] { quantize(x, scaled({4, 8}), o); }, {"quantize", "history[0]", text});
      expect_error(
          [&] {
            gelu_quantize(x, GeluForm::kErf, scaled({4, 8}), {}, o);
          },
          {"gelu_quantize", "history[0]", text});
    }
    EXPECT_EQ(std::memcmp(&value, history.data(), sizeof value), 0);
    EXPECT_EQ(history.data_as<float>()[1], 0.0f);
  }
}

TEST(BadInput, AllocateScaled) {
  for (DType format : {DType::kFloat32, DType::kBFloat16})
    expect_error([&] { scaled({4}, format); },
                 {"ScaledTensor::allocate", "format", "float8 or float16", name(format)});
  expect_error(
      [&] {
        ScaledTensor::allocate({4, 4}, DType::kFloat16, kCpu, ScaleGranularity::kRow);
      },
      {"ScaledTensor::allocate", "format", "be float8,", "float16"});
}

TEST(BadInput, Gemm) {
  const ScaledTensor a = scaled({4, 8}), b = scaled({8, 6});
  const Tensor out = tensor({4, 6}), bias = tensor({5}), bytes = tensor({6}, DType::kE4M3);
  expect_error([&] { gemm(scaled({4}), b, out); }, {"gemm", "a", "2 dimensions", "[4]"});
  expect_error([&] { gemm(a, scaled({7, 6}), out); }, {"gemm", "b", "8", "7"});
  expect_error([&] { gemm(a, b, tensor({6, 4})); }, {"gemm", "out", "[4, 6]", "[6, 4]"});
  expect_error([&] { gemm(a, b, tensor({4, 6}, DType::kE4M3)); }, {"gemm", "out", "float8_e4m3"});
  expect_error([&] { gemm(a, b, out, {.bias = &bias}); }, {"gemm", "bias", "[6]", "[5]"});
  expect_error([&] { gemm(a, b, out, {.bias = &bytes}); }, {"gemm", "bias", "float8_e4m3"});
  expect_error([&] { gemm(ScaledTensor(tensor({4, 8})), b, out); }, {"gemm", "a", "float32"});
  expect_error([&] { gemm(Gemm::kFprop, a, b, out); }, {"gemm", "b"});
  const Tensor row = Tensor::view(out.mutable_data(), DType::kFloat32, {6});
  expect_error([&] { gemm(a, b, out, {.bias = &row}); }, {"gemm", "out", "overlap bias"});
}

TEST(BadInput, Norm) {
  const ScaledTensor grads[] = {scaled({4})};
  expect_error([&] { grad_norm(grads, tensor({2})); }, {"grad_norm", "norm", "[2]"});
  expect_error([&] { clip_grad_norm(grads, -1.0f, tensor({})); },
               {"clip_grad_norm", "max_norm", "-1"});
  expect_error([&] { clip_grad_norm(grads, NAN, tensor({})); },
               {"clip_grad_norm", "max_norm", "nan"});
  expect_error([&] { clip_grad_norm(grads, 1.0f, tensor({2})); },
               {"clip_grad_norm", "norm", "[2]"});
  const Tensor norm = scalar(7.0f), values = tensor({4});
  const ScaledTensor read_only[] = {Tensor::view(values.data(), DType::kFloat32, {4})};
  expect_error([&] { clip_grad_norm(read_only, 1.0f, norm); }, {"read-only", "float32[4]"});
  EXPECT_EQ(*norm.data_as<float>(), 7.0f);
}

TEST(BadInput, CudaWithoutCuda) {
  if (built_with_cuda()) GTEST_SKIP() << "this build has CUDA";
  float memory[5] = {};
  const Tensor x = Tensor::view(static_cast<void*>(memory), DType::kFloat32, {4}, cuda(0)),
               out = Tensor::view(static_cast<void*>(memory + 4), DType::kFloat32, {}, cuda(0));
  expect_error([&] { amax(x, out); }, {"amax", "no CUDA"});
  EXPECT_EQ(device_count(), 0);
  EXPECT_FALSE(cuda_status().empty());
}

TEST(BuildInfo, IsOneJsonObject) {
  const std::string info = build_info();
  EXPECT_EQ(info.front(), '{');
  EXPECT_EQ(info.back(), '}');
  for (const char* key : {"version", "compiler", "isa", "isa_available", "threads", "cuda"})
    EXPECT_NE(info.find("\"" + std::string(key) + "\": "), std::string::npos) << info;
}

}  // namespace
}  // namespace fp8amp
