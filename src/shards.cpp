// Sum of FP8 shards: check once, pick the device.
#include "fp8amp/shards.h"

#include <cmath>
#include <vector>

#include "kernels/shards.h"
#include "src/check.h"
#include "src/device.h"

namespace fp8amp {
namespace {

void check_shards(const char* op, std::span<const ScaledTensor> shards, const ScaledTensor& out) {
  if (shards.empty() || shards.size() > kMaxShards)
    check::fail(op, "shards", "be 1 to " + std::to_string(kMaxShards) + " tensors",
                std::to_string(shards.size()));
  check::scaled(op, "out", out, {DType::kE4M3, DType::kE5M2});
  check::scaled(op, "shards[0]", shards[0], {DType::kE4M3, DType::kE5M2});
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = "shards[" + std::to_string(i) + "]";
    check::scaled(op, name.c_str(), shards[i], {shards[0].dtype()});
    check::shape(op, name.c_str(), shards[i].payload(), out.shape());
    check::device(op, name.c_str(), shards[i].payload(), out.device());
  }
}

void check_options(const char* op, const SumShardsOptions& o, Device device) {
  if (!(o.factor > 0) || !std::isfinite(o.factor))
    check::fail(op, "factor", "be positive and finite", std::to_string(o.factor));
  if (o.scale.defined() && o.bound.defined())
    check::fail(op, "options", "name at most one of scale and bound", "both");
  if (o.scale.defined()) check::scale(op, "scale", o.scale, device);
  if (o.bound.defined()) check::scalar(op, "bound", o.bound, device);
  if (o.amax.defined()) check::scalar(op, "amax", o.amax, device);
  if (o.found_inf.defined()) check::scalar(op, "found_inf", o.found_inf, device);
}

void check_apart(const char* op, std::span<const ScaledTensor> shards, const ScaledTensor& out,
                 const SumShardsOptions& o) {
  using check::reads, check::writes;
  std::vector<check::Memory> all{
      writes("out", out.payload()), writes("out", out.scale_inv(), ".scale_inv"),
      reads("scale", o.scale),      reads("bound", o.bound),
      writes("amax", o.amax),       writes("found_inf", o.found_inf)};
  all.reserve(all.size() + 2 * shards.size());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    all.push_back(reads("shards", shards[i].payload(), "", index));
    all.push_back(reads("shards", shards[i].scale_inv(), ".scale_inv", index));
  }
  check::apart(op, all);
}

}  // namespace

void sum_shards(std::span<const ScaledTensor> shards, const ScaledTensor& out,
                const SumShardsOptions& o) {
  const char* op = "sum_shards";
  check_shards(op, shards, out);
  check_options(op, o, out.device());
  check_apart(op, shards, out, o);
  std::vector<kernels::Shard> list;
  list.reserve(shards.size());
  for (const ScaledTensor& shard : shards)
    list.push_back({shard.payload().data(), shard.scale_inv().data_as<float>()});
  kernels::SumShardsArgs args{};
  args.shards = list;
  args.x_type = shards[0].dtype();
  args.y = out.payload().mutable_data();
  args.format = out.dtype();
  args.scale_inv = out.scale_inv().mutable_data_as<float>();
  args.n = out.numel();
  args.factor = o.factor;
  args.scale_rounding = o.scale_rounding;
  args.scale = check::pointer(o.scale);
  args.bound = check::pointer(o.bound);
  args.amax = check::mutable_pointer(o.amax);
  args.found_inf = check::mutable_pointer(o.found_inf);
  args.stream = o.stream;
  const ScopedDevice current(out.device());
  switch (out.device().type) {
    case DeviceType::kCpu: return kernels::cpu::sum_shards(args);
    case DeviceType::kCuda: return kernels::cuda::sum_shards(args);
  }
}

}  // namespace fp8amp
