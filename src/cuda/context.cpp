#include "src/cuda/context.h"

#include <map>
#include <mutex>
#include <string>

#include "fp8amp/error.h"
#include "src/cuda/gemm_plan.h"

namespace fp8amp::gpu {
namespace {

struct Contexts {
  std::mutex mutex;
  std::map<int, std::unique_ptr<Context>> of_device;
  const CublasLt* table = nullptr;  // of a ContextOverride
  int compute_capability = 0;

  int compute_capability_of(int device) const {
    return table ? compute_capability : device_facts(device).compute_capability;
  }
};

Contexts& contexts() {
  static Contexts* const all = new Contexts;  // never destroyed, see Context::current
  return *all;
}

}  // namespace

Context::Context(const CublasLt& lt, int compute_capability)
    : lt_(lt), compute_capability_(compute_capability), plans_(std::make_unique<PlanCache>()) {
  check(lt_, lt_.Create(&handle_), "cublasLtCreate");
}

Context::~Context() {
  plans_.reset();
  if (handle_) (void)lt_.Destroy(handle_);
}

// What NVIDIA recommends for Hopper and later; 4 MiB is enough for what came before.
std::size_t Context::workspace_bytes() const {
  return std::size_t(compute_capability_ >= 90 ? 32 : 4) << 20;
}

Context& Context::current(cudaStream_t stream) {
  const int device = current_device();
  Contexts& all = contexts();
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<Context>& context = all.of_device[device];
  if (!context) {
    const int compute_capability = all.compute_capability_of(device);
    if (compute_capability < 80)
      throw Error("gemm: the GPU must have compute capability 8.0 or higher, got " +
                  version_text(compute_capability));
    if (is_capturing(stream)) refuse_in_capture("the cuBLASLt handle of this device");
    context =
        std::make_unique<Context>(all.table ? *all.table : gpu::cublaslt(), compute_capability);
  }
  return *context;
}

int compute_capability() {
  Contexts& all = contexts();
  const std::lock_guard lock(all.mutex);
  return all.compute_capability_of(current_device());
}

ContextOverride::ContextOverride(const CublasLt& table, int compute_capability) {
  release_stream_memory();
  Contexts& all = contexts();
  const std::lock_guard lock(all.mutex);
  all.of_device.clear();
  all.table = &table;
  all.compute_capability = compute_capability;
}

ContextOverride::~ContextOverride() {
  release_stream_memory();
  Contexts& all = contexts();
  const std::lock_guard lock(all.mutex);
  all.of_device.clear();
  all.table = nullptr;
}

}  // namespace fp8amp::gpu
