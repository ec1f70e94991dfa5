// FP8 GEMM: check once, turn transpositions into strides, pick the device.
#include "fp8amp/gemm.h"

#include "kernels/gemm.h"
#include "src/check.h"
#include "src/device.h"

namespace fp8amp {
namespace {

void check_operand(const char* argument, const ScaledTensor& x, bool rows_along_k) {
  if (x.granularity() == ScaleGranularity::kTensor)
    return check::scaled("gemm", argument, x, {DType::kE4M3, DType::kE5M2});
  check::blocks("gemm", argument, x);
  if (!rows_along_k)
    check::fail("gemm", argument, "be stored with the contraction along its rows",
                std::string("the other layout with ") + name(x.granularity()));
}

void check_apart(const ScaledTensor& a, const ScaledTensor& b, const Tensor& out,
                 const Tensor* bias) {
  using check::reads;
  check::Memory all[] = {check::writes("out", out),
                         reads("a", a.payload()),
                         reads("a", a.scale_inv(), ".scale_inv"),
                         reads("b", b.payload()),
                         reads("b", b.scale_inv(), ".scale_inv"),
                         bias ? reads("bias", *bias) : check::Memory{}};
  check::apart("gemm", all);
}

}  // namespace

void gemm(const ScaledTensor& a, const ScaledTensor& b, const Tensor& out, const GemmOptions& o) {
  const char* op = "gemm";
  check_operand("a", a, !o.transpose_a);
  check_operand("b", b, o.transpose_b);
  check::dim(op, "a", a.payload(), 2);
  check::dim(op, "b", b.payload(), 2);
  check::device(op, "b", b.payload(), a.device());
  const std::int64_t m = a.shape()[o.transpose_a ? 1 : 0], k = a.shape()[o.transpose_a ? 0 : 1];
  const std::int64_t kb = b.shape()[o.transpose_b ? 1 : 0], n = b.shape()[o.transpose_b ? 0 : 1];
  if (k != kb)
    check::fail(op, "b", "have the contraction size of a, " + std::to_string(k),
                std::to_string(kb) + " in " + check::to_string(b.shape()));
  check::dtype(op, "out", out, {DType::kFloat32, DType::kBFloat16, DType::kFloat16});
  check::shape(op, "out", out, {m, n});
  check::device(op, "out", out, a.device());
  if (o.bias) {
    check::dtype(op, "bias", *o.bias, {DType::kFloat32, DType::kBFloat16, DType::kFloat16});
    check::shape(op, "bias", *o.bias, {n});
    check::device(op, "bias", *o.bias, a.device());
  }
  check_apart(a, b, out, o.bias);
  if (o.accumulation != Accumulation::kDefault && a.device().type != DeviceType::kCpu)
    check::fail(op, "accumulation", "be default on a GPU", "hopper");
  for (const ScaledTensor* x : {&a, &b})
    if (o.accumulation != Accumulation::kDefault && x->granularity() != ScaleGranularity::kTensor)
      check::fail(op, "accumulation", std::string("be default with ") + name(x->granularity()),
                  "hopper");
  kernels::GemmArgs args{};
  args.a = a.payload().data_as<std::uint8_t>();
  args.a_type = a.dtype();
  args.a_row = o.transpose_a ? 1 : k;
  args.a_k = o.transpose_a ? m : 1;
  args.a_scale_inv = check::pointer(a.scale_inv());
  args.a_granularity = a.granularity();
  args.b = b.payload().data_as<std::uint8_t>();
  args.b_type = b.dtype();
  args.b_row = o.transpose_b ? k : 1;
  args.b_k = o.transpose_b ? 1 : n;
  args.b_scale_inv = check::pointer(b.scale_inv());
  args.b_granularity = b.granularity();
  args.d = out.mutable_data();
  args.d_type = out.dtype();
  args.bias = o.bias ? o.bias->data() : nullptr;
  args.bias_type = o.bias ? o.bias->dtype() : DType::kFloat32;
  args.m = m;
  args.n = n;
  args.k = k;
  args.accumulate = o.accumulate;
  args.fast_accumulation = o.fast_accumulation;
  args.stream = o.stream;
  args.accumulation = o.accumulation;
  const ScopedDevice current(a.device());
  switch (a.device().type) {
    case DeviceType::kCpu: return kernels::cpu::gemm(args);
    case DeviceType::kCuda: return kernels::cuda::gemm(args);
  }
}

bool gemm_prefers_k_contiguous(Device device) {
  if (device.type == DeviceType::kCpu) return false;  // packing absorbs every layout
  const ScopedDevice current(device);
  return kernels::cuda::gemm_prefers_k_contiguous();
}

void gemm(Gemm kind, const ScaledTensor& a, const ScaledTensor& b, const Tensor& out,
          GemmOptions options) {
  options.transpose_a = kind == Gemm::kWgrad;
  options.transpose_b = kind == Gemm::kFprop;
  gemm(a, b, out, options);
}

}  // namespace fp8amp
