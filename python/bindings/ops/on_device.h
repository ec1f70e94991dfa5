// Ops whose tensors' GPU is torch's current device while they run, as with torch's own ops. It is
// torch that makes it current: unlike the core's guard it makes no context on a GPU that has none
// when it goes back.
#pragma once
#include <torch/csrc/stable/accelerator.h>

#include <utility>

#include "python/bindings/ops/convert.h"

namespace fp8amp::bindings {

class OnDevice {
 public:
  template <class... Arguments>
  explicit OnDevice(const Arguments&... arguments) {
    (look_at(arguments), ...);
  }

 private:
  void look_at(const TorchTensor& t) {
    if (!guard_ && t.is_cuda()) guard_.emplace(t.get_device_index());
  }
  void look_at(const OptionalTensor& t) {
    if (t) look_at(*t);
  }
  void look_at(const std::vector<TorchTensor>& list) {
    if (!list.empty()) look_at(list.front());
  }
  template <class T>
  void look_at(const T&) {}

  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

template <auto op>
struct Guarded;
template <class Result, class... Arguments, Result (*op)(Arguments...)>
struct Guarded<op> {
  static Result call(Arguments... arguments) {
    const OnDevice guard(arguments...);
    return op(std::forward<Arguments>(arguments)...);
  }
};

#define FP8AMP_BOX(op) TORCH_BOX(&Guarded<&op>::call)

}  // namespace fp8amp::bindings
