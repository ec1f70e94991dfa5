// torch.ops.fp8amp: build_info, isa_level; and torch's thread pool for the CPU kernels.
#include <torch/csrc/stable/ops.h>

#include "python/bindings/ops/convert.h"

namespace fp8amp::bindings {
namespace {

std::string build_info() { return fp8amp::build_info(); }
std::string isa_level() { return fp8amp::isa_level(); }

STABLE_TORCH_LIBRARY(fp8amp, m) {
  m.def("build_info() -> str");
  m.def("isa_level() -> str");
}
STABLE_TORCH_LIBRARY_IMPL(fp8amp, CompositeExplicitAutograd, m) {
  m.impl("build_info", TORCH_BOX(&build_info));
  m.impl("isa_level", TORCH_BOX(&isa_level));
}

// One pool in the process: torch's, so that torch.set_num_threads holds for both.
const bool kUsesTorchThreads = [] {
  set_parallel_for([](int64_t begin, int64_t end, int64_t grain, const RangeFunction& body) {
    torch::stable::parallel_for(begin, end, grain, body);
  });
  return true;
}();

}  // namespace
}  // namespace fp8amp::bindings
