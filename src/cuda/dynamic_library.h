// Finds a shared library at first use. One that the process has loaded already comes first, so that
// torch's copy is shared.
//
//   order: the path in the environment variable, alone, if set; a loaded copy by soname; the
//   loader's own search; site-packages/nvidia beside the installed package (where pip puts CUDA);
//   $CUDA_HOME, $CUDA_PATH; /usr/local/cuda
#pragma once
#include <cstddef>
#include <string>

namespace fp8amp::gpu {

class DynamicLibrary {
 public:
  // Throws Error with every attempt and how to help.
  DynamicLibrary(const std::string& soname, const char* environment_variable);

  void* symbol(const char* name) const;  // throws Error naming the library and the symbol
  const std::string& path() const { return path_; }

 private:
  void open(const std::string& name, int flags);

  void* handle_ = nullptr;  // never closed: function pointers live as long as the process
  std::string path_, failures_;
};

// Of the number that cuBLASLt 13 and NCCL 2.9, and later ones, report: major * 10000 + minor * 100
// + patch.
std::string version_string(std::size_t number);

}  // namespace fp8amp::gpu
