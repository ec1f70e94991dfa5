// torch.ops.fp8amp: grad_norm, grad_amax_, adam_.
#include "python/bindings/ops/convert.h"
#include "python/bindings/ops/on_device.h"

namespace fp8amp::bindings {
namespace {

using TensorList = std::vector<TorchTensor>;

void require_same_length(const char* op, const char* argument, size_t seen, size_t wanted) {
  if (seen != wanted)
    throw Error(std::string(op) + ": " + argument + " must have " + std::to_string(wanted) +
                " entries, got " + std::to_string(seen));
}

// A float32 tensor is plain, whatever its scale_inv says: it is never scaled in storage.
ScaledTensor state(const char* op, const char* argument, const TorchTensor& payload,
                   const TorchTensor& scale_inv) {
  if (payload.scalar_type() == ScalarType::Float) return write(op, argument, payload);
  return write_scaled(op, argument, payload, scale_inv);
}

// weights[i] is the compute weight of list[places[i]].
void set_compute_weights(const char* op, std::vector<AdamParameter>& list,
                         const TensorList& weights, const TensorList& scale_inv,
                         const std::vector<int64_t>& places) {
  require_same_length(op, "compute_weight_scale_inv", scale_inv.size(), weights.size());
  require_same_length(op, "compute_weight_places", places.size(), weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto place = static_cast<size_t>(places[i]);
    if (place >= list.size() || list[place].compute_weight.defined())
      throw Error(std::string(op) + ": compute_weight_places must be different places below " +
                  std::to_string(list.size()) + ", got " + std::to_string(places[i]));
    list[place].compute_weight = write_scaled(op, "compute_weight", weights[i], scale_inv[i]);
  }
}

TorchTensor grad_norm(const TensorList& grads, const TensorList& scale_inv) {
  const char* op = "grad_norm";
  require_same_length(op, "scale_inv", scale_inv.size(), grads.size());
  if (grads.empty()) throw Error("grad_norm: grads must not be empty, got 0 tensors");
  TorchTensor norm = empty_scalar(grads.front());
  std::vector<ScaledTensor> list;
  for (size_t i = 0; i < grads.size(); ++i)
    list.push_back(read_scaled(op, "grads", grads[i], scale_inv[i]));
  fp8amp::grad_norm(list, write(op, "norm", norm), stream(norm));
  return norm;
}

TorchTensor grad_amax(const TensorList& grads, const TensorList& scale_inv,
                      const TensorList& amax) {
  const char* op = "grad_amax_";
  require_same_length(op, "scale_inv", scale_inv.size(), grads.size());
  require_same_length(op, "amax", amax.size(), grads.size());
  if (grads.empty()) throw Error("grad_amax_: grads must not be empty, got 0 tensors");
  TorchTensor found_inf = empty_scalar(grads.front());
  std::vector<AdamParameter> list(grads.size());
  for (size_t i = 0; i < grads.size(); ++i) {
    list[i].grad = read_scaled(op, "grads", grads[i], scale_inv[i]);
    list[i].amax = write(op, "amax", amax[i]);
  }
  fp8amp::grad_amax(list, write(op, "found_inf", found_inf), stream(found_inf));
  return found_inf;
}

void adam(const TensorList& params, const TensorList& param_scale_inv, const TensorList& grads,
          const TensorList& grad_scale_inv, const TensorList& exp_avg,
          const TensorList& exp_avg_scale_inv, const TensorList& exp_avg_sq,
          const TensorList& exp_avg_sq_scale_inv, const TensorList& amax, const TensorList& steps,
          const std::vector<int64_t>& tensor_ids, const TorchTensor& lr, double beta1, double beta2,
          double eps, double weight_decay, bool decoupled, bool maximize, int64_t master_rounding,
          int64_t moment_rounding, int64_t second_moment_rounding, int64_t seed,
          const OptionalTensor& grad_scale, const OptionalTensor& found_inf,
          const TensorList& compute_weight, const TensorList& compute_weight_scale_inv,
          const std::vector<int64_t>& compute_weight_places) {
  const char* op = "adam_";
  const std::pair<const char*, size_t> lengths[] = {
      {"param_scale_inv", param_scale_inv.size()},
      {"grads", grads.size()},
      {"grad_scale_inv", grad_scale_inv.size()},
      {"exp_avg", exp_avg.size()},
      {"exp_avg_scale_inv", exp_avg_scale_inv.size()},
      {"exp_avg_sq", exp_avg_sq.size()},
      {"exp_avg_sq_scale_inv", exp_avg_sq_scale_inv.size()},
      {"amax", amax.size()},
      {"steps", steps.size()},
      {"tensor_ids", tensor_ids.size()}};
  for (const auto& [argument, length] : lengths)
    require_same_length(op, argument, length, params.size());
  std::vector<AdamParameter> list(params.size());
  for (size_t i = 0; i < params.size(); ++i)
    list[i] = {state(op, "params", params[i], param_scale_inv[i]),
               read_scaled(op, "grads", grads[i], grad_scale_inv[i]),
               state(op, "exp_avg", exp_avg[i], exp_avg_scale_inv[i]),
               state(op, "exp_avg_sq", exp_avg_sq[i], exp_avg_sq_scale_inv[i]),
               write(op, "amax", amax[i]),
               write(op, "steps", steps[i]),
               static_cast<uint32_t>(tensor_ids[i])};
  set_compute_weights(op, list, compute_weight, compute_weight_scale_inv, compute_weight_places);
  if (params.empty()) return;
  AdamOptions o;
  o.lr_tensor = read(op, "lr", lr);
  o.betas = {beta1, beta2};
  o.eps = static_cast<float>(eps);
  o.weight_decay = static_cast<float>(weight_decay);
  o.decay = decoupled ? numerics::WeightDecay::kDecoupled : numerics::WeightDecay::kL2;
  o.maximize = maximize;
  o.master_rounding = to_rounding(op, master_rounding);
  o.moment_rounding = to_rounding(op, moment_rounding);
  o.second_moment_rounding = to_rounding(op, second_moment_rounding);
  o.seed = static_cast<uint64_t>(seed);
  o.grad_scale = read(op, "grad_scale", grad_scale);
  o.found_inf = read(op, "found_inf", found_inf);
  o.stream = stream(params.front());
  fp8amp::adam_update(list, o);
}

void implement(torch::stable::detail::StableLibrary& m) {
  m.impl("grad_norm", FP8AMP_BOX(grad_norm));
  m.impl("grad_amax_", FP8AMP_BOX(grad_amax));
  m.impl("adam_", FP8AMP_BOX(adam));
}

STABLE_TORCH_LIBRARY_FRAGMENT(fp8amp, m) {
  m.def("grad_norm(Tensor[] grads, Tensor[] scale_inv) -> Tensor");
  m.def("grad_amax_(Tensor[] grads, Tensor[] scale_inv, Tensor(a!)[] amax) -> Tensor found_inf");
  m.def(
      "adam_(Tensor(a!)[] params, Tensor(b!)[] param_scale_inv, Tensor[] grads, Tensor[] "
      "grad_scale_inv, Tensor(c!)[] exp_avg, "
      "Tensor(d!)[] exp_avg_scale_inv, Tensor(e!)[] exp_avg_sq, Tensor(f!)[] exp_avg_sq_scale_inv, "
      "Tensor(g!)[] amax, Tensor(h!)[] steps, "
      "int[] tensor_ids, Tensor lr, float beta1, float beta2, float eps, float weight_decay, bool "
      "decoupled, bool maximize, "
      "int master_rounding, int moment_rounding, int second_moment_rounding, int seed, Tensor? "
      "grad_scale, Tensor? found_inf, Tensor(i!)[] compute_weight, Tensor(j!)[] "
      "compute_weight_scale_inv, int[] compute_weight_places) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(fp8amp, CPU, m) { implement(m); }
STABLE_TORCH_LIBRARY_IMPL(fp8amp, CUDA, m) { implement(m); }

}  // namespace
}  // namespace fp8amp::bindings
