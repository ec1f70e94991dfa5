// NCCL, found at run time: no header and no library of NCCL is needed to build or to load fp8amp.
#pragma once
#include <string>

namespace fp8amp::gpu {

// "<path>, version 2.28.9", or why it cannot be loaded. Loads the library.
std::string nccl_status();

}  // namespace fp8amp::gpu
