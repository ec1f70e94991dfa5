// torch.ops.fp8amp: quantize, quantize_, quantize_transpose, quantize_delayed, column_sums,
// dequantize, dequantize_, accumulate_, amax.
#include "python/bindings/ops/convert.h"
#include "python/bindings/ops/on_device.h"

#include <tuple>

namespace fp8amp::bindings {
namespace {

QuantizeOptions make_options(const char* op, const TorchTensor& x, int64_t scale_rounding,
                             int64_t margin, int64_t overflow, const TorchTensor& amax) {
  QuantizeOptions o;
  o.scale_rounding = to_scale_rounding(op, scale_rounding);
  o.margin = to_margin(margin);
  o.overflow = to_overflow(op, overflow);
  o.amax = write(op, "amax", amax);
  o.stream = stream(x);
  return o;
}

// float32 [N] for x [M, N] if `wanted`, and then an output of the cast; else empty.
TorchTensor make_column_sums(const char* op, const TorchTensor& x, bool wanted,
                             QuantizeOptions& o) {
  TorchTensor sums = empty({wanted ? matrix_shape(op, "x", x)[1] : 0}, ScalarType::Float, x);
  if (wanted) o.column_sums = write(op, "column_sums", sums);
  return sums;
}

std::tuple<TorchTensor, TorchTensor, TorchTensor, TorchTensor> quantize(
    const TorchTensor& x, const OptionalTensor& x_scale_inv, ScalarType format,
    const OptionalTensor& scale, int64_t scale_rounding, int64_t margin, int64_t rounding,
    int64_t overflow, int64_t seed, bool column_sums) {
  const char* op = "quantize";
  to_dtype(op, "format", format);
  TorchTensor payload = empty(shape(x), format, x), scale_inv = empty_scalar(x),
              amax = empty_scalar(x);
  QuantizeOptions o = make_options(op, x, scale_rounding, margin, overflow, amax);
  o.rounding = to_rounding(op, rounding);
  o.seed = static_cast<uint64_t>(seed);
  o.scale = read(op, "scale", scale);
  TorchTensor sums = make_column_sums(op, x, column_sums, o);
  fp8amp::quantize(read_scaled(op, "x", x, x_scale_inv),
                   write_scaled(op, "out", payload, scale_inv), o);
  return {payload, scale_inv, amax, sums};
}

TorchTensor quantize_into(const TorchTensor& payload, const TorchTensor& scale_inv,
                          const TorchTensor& x, const OptionalTensor& x_scale_inv, bool keep_scale,
                          int64_t scale_rounding, int64_t margin, int64_t rounding,
                          int64_t overflow, int64_t seed) {
  const char* op = "quantize_";
  TorchTensor amax = empty_scalar(x);
  QuantizeOptions o = make_options(op, x, scale_rounding, margin, overflow, amax);
  o.rounding = to_rounding(op, rounding);
  o.seed = static_cast<uint64_t>(seed);
  o.keep_scale = keep_scale;
  fp8amp::quantize(read_scaled(op, "x", x, x_scale_inv),
                   write_scaled(op, "payload", payload, scale_inv), o);
  return amax;
}

std::tuple<TorchTensor, TorchTensor, TorchTensor, TorchTensor, TorchTensor> quantize_transpose(
    const TorchTensor& x, const OptionalTensor& x_scale_inv, ScalarType format,
    const OptionalTensor& scale, const OptionalTensor& history, int64_t scale_rounding,
    int64_t margin, int64_t overflow, bool update, bool column_sums) {
  const char* op = "quantize_transpose";
  to_dtype(op, "format", format);
  std::vector<int64_t> s = matrix_shape(op, "x", x);
  TorchTensor payload = empty(s, format, x), transposed = empty({s[1], s[0]}, format, x),
              scale_inv = empty_scalar(x), amax = empty_scalar(x);
  QuantizeOptions o = make_options(op, x, scale_rounding, margin, overflow, amax);
  o.scale = read(op, "scale", scale);
  if (history) o.history = write(op, "history", *history);
  o.update_history = update;
  TorchTensor sums = make_column_sums(op, x, column_sums, o);
  fp8amp::quantize_transpose(read_scaled(op, "x", x, x_scale_inv),
                             write_scaled(op, "out", payload, scale_inv),
                             write(op, "transposed", transposed), o);
  return {payload, transposed, scale_inv, amax, sums};
}

std::tuple<TorchTensor, TorchTensor, TorchTensor, TorchTensor> quantize_delayed(
    const TorchTensor& x, const OptionalTensor& x_scale_inv, ScalarType format,
    const TorchTensor& history, int64_t scale_rounding, int64_t margin, int64_t overflow,
    bool update, bool column_sums) {
  const char* op = "quantize_delayed";
  to_dtype(op, "format", format);
  TorchTensor payload = empty(shape(x), format, x), scale_inv = empty_scalar(x),
              amax = empty_scalar(x);
  QuantizeOptions o = make_options(op, x, scale_rounding, margin, overflow, amax);
  o.history = write(op, "history", history);
  o.update_history = update;
  TorchTensor sums = make_column_sums(op, x, column_sums, o);
  fp8amp::quantize(read_scaled(op, "x", x, x_scale_inv),
                   write_scaled(op, "out", payload, scale_inv), o);
  return {payload, scale_inv, amax, sums};
}

TorchTensor column_sums(const TorchTensor& x, const OptionalTensor& x_scale_inv) {
  const char* op = "column_sums";
  TorchTensor out = empty({matrix_shape(op, "x", x)[1]}, ScalarType::Float, x);
  fp8amp::column_sums(read_scaled(op, "x", x, x_scale_inv), write(op, "out", out), stream(x));
  return out;
}

TorchTensor dequantize(const TorchTensor& payload, const TorchTensor& scale_inv, ScalarType dtype) {
  const char* op = "dequantize";
  to_dtype(op, "dtype", dtype);
  TorchTensor out = empty(shape(payload), dtype, payload);
  fp8amp::dequantize(read_scaled(op, "payload", payload, scale_inv), write(op, "out", out),
                     stream(payload));
  return out;
}

void dequantize_into(const TorchTensor& out, const TorchTensor& payload,
                     const TorchTensor& scale_inv) {
  const char* op = "dequantize_";
  fp8amp::dequantize(read_scaled(op, "payload", payload, scale_inv), write(op, "out", out),
                     stream(payload));
}

void accumulate(const TorchTensor& payload, const TorchTensor& scale_inv, const TorchTensor& x,
                const OptionalTensor& x_scale_inv) {
  const char* op = "accumulate_";
  fp8amp::accumulate(read_scaled(op, "x", x, x_scale_inv),
                     write_scaled(op, "payload", payload, scale_inv), stream(x));
}

std::tuple<TorchTensor, TorchTensor, TorchTensor> sum_shards(
    const std::vector<TorchTensor>& shards, const std::vector<TorchTensor>& scale_inv,
    ScalarType format, double factor, const OptionalTensor& scale, const OptionalTensor& bound,
    int64_t scale_rounding) {
  const char* op = "sum_shards";
  to_dtype(op, "format", format);
  if (shards.empty() || scale_inv.size() != shards.size())
    throw Error("sum_shards: scale_inv must have an entry for every shard, got " +
                std::to_string(scale_inv.size()) + " for " + std::to_string(shards.size()));
  std::vector<ScaledTensor> list;
  for (size_t i = 0; i < shards.size(); ++i)
    list.push_back(read_scaled(op, "shards", shards[i], scale_inv[i]));
  TorchTensor payload = empty(shape(shards[0]), format, shards[0]),
              out_scale_inv = empty_scalar(shards[0]), amax = empty_scalar(shards[0]);
  SumShardsOptions o;
  o.factor = static_cast<float>(factor);
  o.scale_rounding = to_scale_rounding(op, scale_rounding);
  o.scale = read(op, "scale", scale);
  o.bound = read(op, "bound", bound);
  o.amax = write(op, "amax", amax);
  o.stream = stream(shards[0]);
  fp8amp::sum_shards(list, write_scaled(op, "out", payload, out_scale_inv), o);
  return {payload, out_scale_inv, amax};
}

TorchTensor amax(const TorchTensor& x) {
  TorchTensor out = empty_scalar(x);
  fp8amp::amax(read("amax", "x", x), write("amax", "out", out), stream(x));
  return out;
}

void implement(torch::stable::detail::StableLibrary& m) {
  m.impl("quantize", FP8AMP_BOX(quantize));
  m.impl("quantize_", FP8AMP_BOX(quantize_into));
  m.impl("quantize_transpose", FP8AMP_BOX(quantize_transpose));
  m.impl("quantize_delayed", FP8AMP_BOX(quantize_delayed));
  m.impl("column_sums", FP8AMP_BOX(column_sums));
  m.impl("dequantize", FP8AMP_BOX(dequantize));
  m.impl("dequantize_", FP8AMP_BOX(dequantize_into));
  m.impl("accumulate_", FP8AMP_BOX(accumulate));
  m.impl("amax", FP8AMP_BOX(amax));
  m.impl("sum_shards", FP8AMP_BOX(sum_shards));
}

STABLE_TORCH_LIBRARY_FRAGMENT(fp8amp, m) {
  m.def(
      "quantize(Tensor x, Tensor? x_scale_inv, ScalarType format, Tensor? scale, int "
      "scale_rounding, int margin, int rounding, int overflow, "
      "int seed, bool column_sums) -> (Tensor payload, Tensor scale_inv, Tensor amax, Tensor "
      "column_sums)");
  m.def(
      "quantize_(Tensor(a!) payload, Tensor(b!) scale_inv, Tensor x, Tensor? x_scale_inv, bool "
      "keep_scale, int scale_rounding, int margin, "
      "int rounding, int overflow, int seed) -> Tensor amax");
  m.def(
      "quantize_transpose(Tensor x, Tensor? x_scale_inv, ScalarType format, Tensor? scale, "
      "Tensor(a!)? history, int scale_rounding, int margin, int overflow, bool update, bool "
      "column_sums) -> (Tensor payload, Tensor payload_t, Tensor scale_inv, Tensor amax, Tensor "
      "column_sums)");
  m.def(
      "quantize_delayed(Tensor x, Tensor? x_scale_inv, ScalarType format, Tensor(a!) history, int "
      "scale_rounding, int margin, int overflow, "
      "bool update, bool column_sums) -> (Tensor payload, Tensor scale_inv, Tensor amax, Tensor "
      "column_sums)");
  m.def("column_sums(Tensor x, Tensor? x_scale_inv) -> Tensor");
  m.def("dequantize(Tensor payload, Tensor scale_inv, ScalarType dtype) -> Tensor");
  m.def("dequantize_(Tensor(a!) out, Tensor payload, Tensor scale_inv) -> ()");
  m.def(
      "accumulate_(Tensor(a!) payload, Tensor(b!) scale_inv, Tensor x, Tensor? x_scale_inv) -> ()");
  m.def("amax(Tensor x) -> Tensor");
  m.def(
      "sum_shards(Tensor[] shards, Tensor[] scale_inv, ScalarType format, float factor, Tensor? "
      "scale, Tensor? bound, int scale_rounding) -> (Tensor payload, Tensor scale_inv, Tensor "
      "amax)");
}
STABLE_TORCH_LIBRARY_IMPL(fp8amp, CPU, m) { implement(m); }
STABLE_TORCH_LIBRARY_IMPL(fp8amp, CUDA, m) { implement(m); }

}  // namespace
}  // namespace fp8amp::bindings
