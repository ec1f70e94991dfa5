#include "src/cast_arguments.h"

#include <algorithm>
#include <cmath>

#include "fp8amp/numerics/random.h"

namespace fp8amp {
namespace {

// The count is read on the CPU alone, as scales are.
void check_history(const char* op, const Tensor& history, Device device) {
  check::dtype(op, "history", history, {DType::kFloat32});
  check::device(op, "history", history, device);
  if (history.dim() != 1 || history.numel() < 3)
    check::fail(op, "history", "be float32[window + 2] with window >= 1",
                check::to_string(history.shape()));
  if (device.type != DeviceType::kCpu) return;
  const float count = *history.data_as<float>();
  if (!(count >= 0 && std::isfinite(count)) || count != std::floor(count))
    check::fail(op, "history[0]", "be a whole number >= 0", std::to_string(count));
}

kernels::ScaleSource check_scale_source(const char* op, const char* out_name,
                                        const ScaledTensor& out, const QuantizeOptions& o) {
  const Device device = out.device();
  check::margin(op, o.margin);
  if (int(o.scale.defined()) + int(o.history.defined()) + int(o.keep_scale) > 1)
    check::fail(op, "options", "name at most one of scale, history and keep_scale",
                "more than one");
  if (o.scale.defined()) check::scale(op, "scale", o.scale, device);
  if (o.keep_scale)
    check::scale(op, (std::string(out_name) + ".scale_inv").c_str(), out.scale_inv(), device);
  if (o.amax.defined()) check::scalar(op, "amax", o.amax, device);
  if (o.found_inf.defined()) check::scalar(op, "found_inf", o.found_inf, device);
  if (o.history.defined()) check_history(op, o.history, device);
  return o.scale.defined()     ? kernels::ScaleSource::kGiven
         : o.history.defined() ? kernels::ScaleSource::kDelayed
         : o.keep_scale        ? kernels::ScaleSource::kKeep
                               : kernels::ScaleSource::kCurrent;
}

}  // namespace

kernels::QuantizeArgs cast_arguments(const char* op, const char* out_name, const ScaledTensor& out,
                                     const QuantizeOptions& o) {
  kernels::QuantizeArgs a{};
  a.source = check_scale_source(op, out_name, out, o);
  a.y = out.payload().mutable_data();
  a.format = out.dtype();
  a.scale_inv = out.scale_inv().mutable_data_as<float>();
  a.n = out.numel();
  a.scale = check::pointer(o.scale);
  a.history = check::mutable_pointer(o.history);
  a.history_length = o.history.defined() ? o.history.numel() - 2 : 0;
  a.update_history = o.update_history;
  a.scale_rounding = o.scale_rounding;
  a.margin = o.margin;
  a.rounding = o.rounding;
  a.overflow = o.overflow;
  a.key = numerics::random_key(o.seed, 0, 0);
  a.amax = check::mutable_pointer(o.amax);
  a.found_inf = check::mutable_pointer(o.found_inf);
  a.stream = o.stream;
  return a;
}

void add_transposed(const char* op, const char* out_name, const ScaledTensor& out,
                    const Tensor& transposed, const QuantizeOptions& options,
                    kernels::QuantizeArgs& args) {
  check::dim(op, out_name, out.payload(), 2);
  check::dtype(op, "transposed", transposed, {out.dtype()});
  check::shape(op, "transposed", transposed, {out.shape()[1], out.shape()[0]});
  check::device(op, "transposed", transposed, out.device());
  if (options.rounding != Rounding::kNearest)
    check::fail(op, "rounding", "be nearest", "stochastic");
  args.transposed = transposed.mutable_data_as<std::uint8_t>();
  args.rows = out.shape()[0];
  args.cols = out.shape()[1];
}

void check_apart(const char* op, const char* out_name, const ScaledTensor& out,
                 const Tensor& transposed, const QuantizeOptions& o, const OtherArguments& others) {
  using check::reads, check::writes;
  const Tensor& scale_inv = out.scale_inv();
  std::array<check::Memory, 8 + kOtherArguments> all{
      writes(out_name, out.payload()),
      o.keep_scale ? reads(out_name, scale_inv, ".scale_inv")
                   : writes(out_name, scale_inv, ".scale_inv"),
      writes("transposed", transposed),
      reads("scale", o.scale),
      writes("history", o.history),
      writes("amax", o.amax),
      writes("found_inf", o.found_inf),
      writes("column_sums", o.column_sums)};
  std::copy(others.begin(), others.end(), all.begin() + 8);
  check::apart(op, all);
}

}  // namespace fp8amp
