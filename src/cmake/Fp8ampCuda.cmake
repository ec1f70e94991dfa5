# Decides FP8AMP_HAS_CUDA and says so in one line. fp8amp_cuda_target(t) sets the flags of a target that holds .cu files,
# fp8amp_cuda_link(t PRIVATE) of one that links its objects.
set(FP8AMP_HAS_CUDA FALSE)
if(NOT FP8AMP_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "FP8AMP_CUDA must be AUTO, ON or OFF, got '${FP8AMP_CUDA}'")
endif()
file(GLOB FP8AMP_CUDA_KERNELS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
file(GLOB FP8AMP_CUDA_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/*.cpp)

set(_why "")
if(NOT FP8AMP_CUDA_KERNELS)
  set(_why "this version has no CUDA kernels")
elseif(FP8AMP_CUDA STREQUAL "OFF")
  set(_why "FP8AMP_CUDA=OFF")
else()
  include(CheckLanguage)
  set(CMAKE_CUDA_ARCHITECTURES OFF) # flags are set per target below; this also spares CMake's own default
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_package(Python QUIET COMPONENTS Interpreter) # pip install "cuda-toolkit[nvcc,crt,nvvm,cccl]" puts nvcc in site-packages
    find_program(FP8AMP_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin ${Python_SITELIB}/nvidia/cu13/bin
      /usr/local/cuda/bin)
    if(FP8AMP_NVCC)
      set(ENV{CUDACXX} ${FP8AMP_NVCC}) # not CMAKE_CUDA_COMPILER: with that set, check_language believes without checking
    endif()
  endif()
  # pip's nvcc looks for cudart in lib64, pip installs it in lib: tell the linker, now and (below) when building
  cmake_path(SET _root NORMALIZE "$ENV{CUDACXX}/../..")
  if(EXISTS ${_root}/lib/libcudart_static.a AND NOT EXISTS ${_root}/lib64)
    set(FP8AMP_CUDART_DIR ${_root}/lib CACHE INTERNAL "")
    set(ENV{LIBRARY_PATH} "${FP8AMP_CUDART_DIR}:$ENV{LIBRARY_PATH}")
  endif()
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(_why "no working nvcc on PATH, in CUDA_HOME, /usr/local/cuda or site-packages (CUDACXX names one)")
  else()
    enable_language(CUDA)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake 3.25 does not know that nvcc has C++20; 3.26 does
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    endif()
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.9)
      set(_why "nvcc ${CMAKE_CUDA_COMPILER_VERSION} is older than 12.9")
    else()
      set(FP8AMP_HAS_CUDA TRUE)
    endif()
  endif()
endif()

if(NOT FP8AMP_HAS_CUDA)
  if(FP8AMP_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FP8AMP_CUDA=ON, but ${_why}")
  endif()
  message(STATUS "fp8amp: CPU only, ${_why}")
  return()
endif()

# One PTX (compute_89) feeds every cubin: the SASS for 89 and 90 is the same as from native PTX, at 60 % of the CPU time.
# compute_80 has no FP8 instructions and gets its own, larger code.
if(NOT FP8AMP_CUDA_ARCHS)
  set(FP8AMP_GENCODE -gencode=arch=compute_80,code=sm_80
    "-gencode=arch=compute_89,code=[sm_89,sm_90,sm_100,sm_120,compute_89]")
  message(STATUS "fp8amp: CUDA backend with nvcc ${CMAKE_CUDA_COMPILER_VERSION} for sm_80 89 90 100 120 and PTX")
else()
  foreach(arch IN LISTS FP8AMP_CUDA_ARCHS)
    list(APPEND FP8AMP_GENCODE -gencode=arch=compute_${arch},code=sm_${arch})
  endforeach()
  message(STATUS "fp8amp: CUDA backend with nvcc ${CMAKE_CUDA_COMPILER_VERSION} for sm_${FP8AMP_CUDA_ARCHS}")
endif()

# fp8amp_cuda_target(target [-gencode=...]): by default for every CUDA target of the build
function(fp8amp_cuda_target target)
  set(gencode ${FP8AMP_GENCODE})
  if(ARGN AND NOT FP8AMP_CUDA_ARCHS)
    set(gencode ${ARGN})
  endif()
  target_compile_definitions(${target} PRIVATE FP8AMP_HAS_CUDA)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${gencode}>"
    $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra -Xptxas=-warn-spills -Werror=all-warnings>)
  set_target_properties(${target} PROPERTIES CUDA_RUNTIME_LIBRARY Static CUDA_SEPARABLE_COMPILATION OFF)
  # For the .cpp files. Not find_package(CUDAToolkit): it misreads the layout of pip's toolkit, and nvcc knows all we need.
  target_include_directories(${target} SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
endfunction()

# cudart is linked statically and its symbols stay inside; nothing of CUDA is needed to load the library
function(fp8amp_cuda_link target scope)
  target_link_directories(${target} ${scope} ${FP8AMP_CUDART_DIR} ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES})
  target_link_libraries(${target} ${scope} cudart_static Threads::Threads ${CMAKE_DL_LIBS} rt)
  target_link_options(${target} ${scope} -Wl,--exclude-libs,ALL)
endfunction()
