// Trains y = W2 relu(W1 x + b1) + b2 at O2: FP8 matrix products, FP8 gradients, Adam at 6 bytes per
// weight. The task is to imitate a fixed random network. Exits with 1 if the loss has not fallen
// tenfold.
#include <fp8amp/fp8amp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

using fp8amp::DType;
using fp8amp::ScaledTensor;
using fp8amp::Tensor;

namespace {

constexpr std::int64_t kBatch = 128, kInputs = 32, kHidden = 128, kOutputs = 16;
constexpr int kSteps = 400;

// A plain FP32 matrix or vector, normally distributed.
Tensor random_tensor(std::vector<std::int64_t> shape, float deviation, std::mt19937& rng) {
  Tensor x = Tensor::allocate(std::move(shape), DType::kFloat32);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::generate_n(x.mutable_data_as<float>(), x.numel(), [&] { return normal(rng); });
  return x;
}

// Forward and backward read E4M3 copies; they live as long as this returned tensor.
ScaledTensor to_fp8(const ScaledTensor& x,
                    fp8amp::Overflow overflow = fp8amp::Overflow::kSaturate) {
  ScaledTensor y = ScaledTensor::allocate(x.shape(), DType::kE4M3);
  fp8amp::quantize(x, y, {.overflow = overflow});
  return y;
}

class Linear {
 public:
  Linear(std::int64_t inputs, std::int64_t outputs, std::uint32_t id, std::mt19937& rng) {
    const ScaledTensor weight = ScaledTensor::allocate({outputs, inputs}, DType::kFloat16);
    fp8amp::quantize(
        random_tensor({outputs, inputs}, 1.0f / std::sqrt(static_cast<float>(inputs)), rng),
        weight);
    weight_ = fp8amp::make_adam_parameter(
        weight, ScaledTensor::allocate({outputs, inputs}, DType::kE4M3), fp8amp::Level::kO2, id);
    bias_ = fp8amp::make_adam_parameter(Tensor::allocate({outputs}, DType::kFloat32),
                                        Tensor::allocate({outputs}, DType::kFloat32),
                                        fp8amp::Level::kO2, id + 1);
  }

  Tensor forward(const Tensor& x) {
    x_ = to_fp8(x);
    w_ = to_fp8(weight_.param);
    Tensor y = Tensor::allocate({x.size(0), w_.shape()[0]}, DType::kFloat32);
    fp8amp::gemm(fp8amp::Gemm::kFprop, x_, w_, y, {.bias = &bias_.param.payload()});
    return y;
  }

  // Writes the gradients of weight and bias, returns that of x.
  Tensor backward(const Tensor& dy) {
    // an overflow in a gradient must not be hidden: Inf becomes NaN, and adam_step skips the step
    const ScaledTensor dy8 = to_fp8(dy, fp8amp::Overflow::kNaN);
    const Tensor dx = Tensor::allocate(x_.shape(), DType::kFloat32);
    const Tensor dw = Tensor::allocate(w_.shape(), DType::kFloat32);
    fp8amp::gemm(fp8amp::Gemm::kDgrad, dy8, w_, dx);
    fp8amp::gemm(fp8amp::Gemm::kWgrad, dy8, x_, dw);
    fp8amp::quantize(dw, weight_.grad, {.overflow = fp8amp::Overflow::kNaN});

    Tensor db = bias_.grad.payload();
    std::fill_n(db.mutable_data_as<float>(), db.numel(), 0.0f);
    for (std::int64_t i = 0; i < dy.numel(); ++i)
      db.mutable_data_as<float>()[i % db.numel()] += dy.data_as<float>()[i];
    return dx;
  }

  void append_parameters(std::vector<fp8amp::AdamParameter>& list) const {
    list.insert(list.end(), {weight_, bias_});
  }
  std::int64_t weight_bytes() const {  // what stays in memory between two steps
    std::int64_t bytes = 0;
    for (const ScaledTensor* t :
         {&weight_.param, &weight_.grad, &weight_.exp_avg, &weight_.exp_avg_sq})
      bytes += t->payload().nbytes();
    return bytes;
  }
  std::int64_t weights() const { return weight_.param.numel(); }

 private:
  fp8amp::AdamParameter weight_, bias_;
  ScaledTensor x_, w_;  // FP8 copies, from forward for backward
};

class TwoLayerNet {
 public:
  explicit TwoLayerNet(std::mt19937& rng)
      : first(kInputs, kHidden, 0, rng), second(kHidden, kOutputs, 2, rng) {}

  Tensor forward(const Tensor& x) {
    hidden_ = first.forward(x);
    float* h = hidden_.mutable_data_as<float>();
    for (std::int64_t i = 0; i < hidden_.numel(); ++i) h[i] = std::max(h[i], 0.0f);
    return second.forward(hidden_);
  }

  void backward(const Tensor& dy) {
    Tensor dh = second.backward(dy);
    for (std::int64_t i = 0; i < dh.numel(); ++i)
      if (hidden_.data_as<float>()[i] <= 0.0f) dh.mutable_data_as<float>()[i] = 0.0f;
    first.backward(dh);
  }

  Linear first, second;

 private:
  Tensor hidden_;
};

// Mean squared error, and its gradient in dy.
float squared_error(const Tensor& y, const Tensor& target, Tensor& dy) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < y.numel(); ++i) {
    const float difference = y.data_as<float>()[i] - target.data_as<float>()[i];
    dy.mutable_data_as<float>()[i] = 2.0f * difference / static_cast<float>(y.numel());
    sum += static_cast<double>(difference) * difference;
  }
  return static_cast<float>(sum / static_cast<double>(y.numel()));
}

}  // namespace

int main() {
  std::mt19937 rng(0);
  TwoLayerNet teacher(rng), net(rng);
  std::vector<fp8amp::AdamParameter> parameters;
  net.first.append_parameters(parameters);
  net.second.append_parameters(parameters);

  std::printf("fp8amp %s, CPU level %s\n", fp8amp::version(), fp8amp::isa_level());
  Tensor dy = Tensor::allocate({kBatch, kOutputs}, DType::kFloat32);
  float first_loss = 0.0f, loss = 0.0f;
  for (int step = 0; step < kSteps; ++step) {
    const Tensor x = random_tensor({kBatch, kInputs}, 1.0f, rng);
    loss = squared_error(net.forward(x), teacher.forward(x), dy);
    net.backward(dy);
    fp8amp::adam_step(parameters, {.lr = 5e-3f * static_cast<float>(kSteps - step) / kSteps,
                                   .betas = {0.9, 0.99},
                                   .level = fp8amp::Level::kO2});
    if (step == 0) first_loss = loss;
    if (step % 50 == 0 || step == kSteps - 1) std::printf("step %3d  loss %.6f\n", step, loss);
  }

  const double bytes = static_cast<double>(net.first.weight_bytes() + net.second.weight_bytes());
  const double weights = static_cast<double>(net.first.weights() + net.second.weights());
  std::printf("%.0f bytes for %.0f weights with gradient and Adam states: %.1f each\n", bytes,
              weights, bytes / weights);
  return loss < first_loss / 10.0f ? 0 : 1;
}
