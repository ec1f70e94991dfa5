#include "src/cuda/dynamic_library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "fp8amp/error.h"

namespace fp8amp::gpu {
namespace {

std::vector<std::filesystem::path> folders() {
  std::vector<std::filesystem::path> result;
  // site-packages/fp8amp/lib/libfp8amp.so
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&folders), &self) && self.dli_fname) {
    const auto site =
        std::filesystem::path(self.dli_fname).parent_path().parent_path().parent_path();
    for (const char* part : {"nvidia/cu13/lib", "nvidia/cublas/lib", "nvidia/nccl/lib"})
      result.push_back(site / part);
  }
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
    if (const char* home = std::getenv(variable); home && *home)
      result.push_back(std::filesystem::path(home) / "lib64");
  result.emplace_back("/usr/local/cuda/lib64");
  return result;
}

}  // namespace

void DynamicLibrary::open(const std::string& name, int flags) {
  if (handle_) return;
  handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
  if (!handle_ && !(flags & RTLD_NOLOAD)) failures_ += std::string("; ") + dlerror();
}

DynamicLibrary::DynamicLibrary(const std::string& soname, const char* environment_variable) {
  if (const char* forced = std::getenv(environment_variable); forced && *forced) {
    open(forced, 0);
  } else {
    open(soname, RTLD_NOLOAD);
    open(soname, 0);
    for (const auto& folder : folders()) {
      std::error_code ignored;  // an unreadable folder is one without the library
      if (!handle_ && std::filesystem::exists(folder / soname, ignored))
        open((folder / soname).string(), 0);
    }
  }
  if (!handle_)
    throw Error("cannot load " + soname +
                " (import torch first, put it on LD_LIBRARY_PATH, or set " + environment_variable +
                " to its path)" + failures_);
  link_map* map = nullptr;
  if (dlinfo(handle_, RTLD_DI_LINKMAP, &map) == 0 && map) path_ = map->l_name;
}

void* DynamicLibrary::symbol(const char* name) const {
  void* address = dlsym(handle_, name);
  if (!address)
    throw Error(path_ + " has no " + name + ": too old, or not the library it claims to be");
  return address;
}

std::string version_string(std::size_t number) {
  return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." +
         std::to_string(number % 100);
}

}  // namespace fp8amp::gpu
