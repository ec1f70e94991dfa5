include_guard(GLOBAL)
# torch_stable: headers of torch and its libtorch_cpu.so, nothing else of torch's (find_package(Torch) drags in CUDA, MKL,
# ABI flags and an RPATH into the building environment).
if(NOT FP8AMP_TORCH_DIR)
  execute_process(COMMAND ${Python_EXECUTABLE} -c
    "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE FP8AMP_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT EXISTS "${FP8AMP_TORCH_DIR}/include/torch/csrc/stable/library.h")
  message(FATAL_ERROR "fp8amp: no torch >= 2.10 for ${Python_EXECUTABLE}. Install torch and use "
    "pip install --no-build-isolation, or pass -DFP8AMP_TORCH_DIR=<site-packages>/torch")
endif()
add_library(torch_stable INTERFACE)
target_include_directories(torch_stable SYSTEM INTERFACE ${FP8AMP_TORCH_DIR}/include)
target_compile_definitions(torch_stable INTERFACE TORCH_TARGET_VERSION=0x020a000000000000) # oldest torch served: 2.10
# libtorch_cpu.so exports the stable C shims; torch has loaded it before us. No torch_cuda: CPU wheels have none.
target_link_libraries(torch_stable INTERFACE ${FP8AMP_TORCH_DIR}/lib/libtorch_cpu.so)
message(STATUS "fp8amp: torch headers from ${FP8AMP_TORCH_DIR}")
