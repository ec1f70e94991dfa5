// Every public function refuses bad input with one sentence that names operation, argument and the
// value seen, and changes nothing.
#include <fp8amp/fp8amp.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>

namespace fp8amp {
namespace {

Tensor tensor(std::vector<std::int64_t> shape, DType dtype = DType::kFloat32) {
  return Tensor::allocate(std::move(shape), dtype);
}
ScaledTensor scaled(std::vector<std::int64_t> shape, DType dtype = DType::kE4M3) {
  return ScaledTensor::allocate(std::move(shape), dtype);
}

void expect_error(const std::function<void()>& call, const std::vector<std::string>& parts) {
  try {
    call();
  } catch (const Error& e) {
    for (const std::string& part : parts)
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos)
          << e.what() << " lacks " << part;
    return;
  }
  ADD_FAILURE() << "no error that mentions " << parts.front();
}

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
  EXPECT_NO_THROW(Tensor::view(static_cast<void*>(nullptr), DType::kFloat32, {0, 3}));
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
  expect_error([&] { accumulate(tensor({4}), ScaledTensor(tensor({4}))); },
               {"accumulate", "out", "float32"});
  expect_error([&] { accumulate(tensor({4}), scaled({3})); }, {"accumulate", "[4]", "[3]"});
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
}

struct Adam : testing::Test {
  AdamParameter p =
      make_adam_parameter(scaled({8, 4}, DType::kFloat16), scaled({8, 4}), Level::kO2, 0);

  void expect_refused(const AdamOptions& options, const std::vector<std::string>& parts) {
    std::string before(static_cast<const char*>(p.param.payload().data()),
                       static_cast<std::size_t>(p.param.payload().nbytes()));
    expect_error([&] { adam_step({&p, 1}, options); }, parts);
    EXPECT_EQ(std::memcmp(before.data(), p.param.payload().data(), before.size()), 0);
    EXPECT_EQ(*p.step.data_as<float>(), 0.0f);
  }
};

TEST_F(Adam, Hyperparameters) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  expect_refused({.lr = nan}, {"adam_update", "lr", "nan"});
  expect_refused({.betas = {1.0, 0.999}}, {"betas[0]", "1.0"});
  expect_refused({.betas = {0.9, -0.1}}, {"betas[1]", "-0.1"});
  expect_refused({.eps = -1.0f}, {"eps", "-1.0"});
  expect_refused({.eps = nan}, {"eps", "nan"});
  expect_refused({.weight_decay = INFINITY}, {"weight_decay", "inf"});
  expect_refused({.grad_scale = tensor({3})}, {"grad_scale", "[3]"});
}

TEST_F(Adam, States) {
  expect_refused({.level = Level::kO1}, {"exp_avg", "float32", "float8_e4m3"});
  AdamParameter good = p;
  p.exp_avg = scaled({4, 8});
  expect_refused({}, {"exp_avg", "[8, 4]", "[4, 8]"});
  p = good;
  p.grad = scaled({8, 5});
  expect_refused({}, {"grad", "[8, 4]", "[8, 5]"});
  p = good;
  p.amax = tensor({3});
  expect_refused({}, {"amax", "[4]", "[3]"});
  p = good;
  p.exp_avg_sq = ScaledTensor(tensor({8, 4}, DType::kFloat16));
  expect_refused({}, {"exp_avg_sq", "scale_inv"});
}

TEST(BadInput, Norm) {
  const ScaledTensor grads[] = {scaled({4})};
  expect_error([&] { grad_norm(grads, tensor({2})); }, {"grad_norm", "norm", "[2]"});
  expect_error([&] { clip_grad_norm(grads, -1.0f, tensor({})); },
               {"clip_grad_norm", "max_norm", "-1"});
  expect_error([&] { clip_grad_norm(grads, NAN, tensor({})); },
               {"clip_grad_norm", "max_norm", "nan"});
}

TEST(BadInput, CudaWithoutCuda) {
  if (built_with_cuda()) GTEST_SKIP() << "this build has CUDA";
  float memory[4] = {};
  const Tensor x = Tensor::view(static_cast<void*>(memory), DType::kFloat32, {4}, cuda(0));
  expect_error(
      [&] { amax(x, Tensor::view(static_cast<void*>(memory), DType::kFloat32, {}, cuda(0))); },
      {"amax", "no CUDA"});
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
