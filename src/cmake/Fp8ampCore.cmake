# The core library from include/, kernels/ and src/: no torch, no Python, no CUDA needed to use it.
file(GLOB FP8AMP_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.cpp ${PROJECT_SOURCE_DIR}/kernels/cpu/*.cpp)
file(GLOB FP8AMP_LOOPS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cpu/isa/*.cpp)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(FP8AMP_ISA_LEVELS v2 v3 v4)
else()
  set(FP8AMP_ISA_LEVELS baseline)
endif()

# ---- how everything in the library is compiled -------------------------------------------------------------------------
add_library(fp8amp_settings INTERFACE)
target_compile_features(fp8amp_settings INTERFACE cxx_std_20)
target_include_directories(fp8amp_settings INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_compile_definitions(fp8amp_settings INTERFACE FP8AMP_BUILDING)
if(NOT FP8AMP_ISA_LEVELS STREQUAL "baseline")
  target_compile_definitions(fp8amp_settings INTERFACE FP8AMP_ISA_LEVELS_X86=1)
endif()
# No contraction into FMA: the result must be the same bits at every ISA level and on the GPU. The other two change no
# result and let GCC vectorise the loops. Never -ffast-math.
target_compile_options(fp8amp_settings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off -fno-math-errno -fno-trapping-math>)
target_link_libraries(fp8amp_settings INTERFACE fp8amp_warnings Threads::Threads)

# ---- objects -----------------------------------------------------------------------------------------------------------
add_library(fp8amp_core OBJECT ${FP8AMP_SOURCES})
target_link_libraries(fp8amp_core PRIVATE fp8amp_settings)
target_compile_definitions(fp8amp_core PRIVATE FP8AMP_VERSION="${PROJECT_VERSION}")
# From low to high level, and kept in this order: of an inline function that several objects hold, the linker keeps the first
# copy. Whoever calls it holds a copy too, so the first is never of a higher level than its caller.
set(FP8AMP_OBJECTS $<TARGET_OBJECTS:fp8amp_core>)

# the CPU's inner loops, once per ISA level, in namespace fp8amp::kernels::cpu::<level>
foreach(level IN LISTS FP8AMP_ISA_LEVELS)
  add_library(fp8amp_loops_${level} OBJECT ${FP8AMP_LOOPS})
  target_link_libraries(fp8amp_loops_${level} PRIVATE fp8amp_settings)
  target_compile_definitions(fp8amp_loops_${level} PRIVATE FP8AMP_ISA=${level})
  if(NOT level STREQUAL "baseline")
    target_compile_options(fp8amp_loops_${level} PRIVATE -march=x86-64-${level})
  endif()
  if(level STREQUAL "v4") # GCC 12 warns inside its own AVX-512 header
    target_compile_options(fp8amp_loops_v4 PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  endif()
  list(APPEND FP8AMP_OBJECTS $<TARGET_OBJECTS:fp8amp_loops_${level}>)
endforeach()

# adding kernels/cuda/*.cu and src/cuda/*.cpp is all that a CUDA backend needs
if(FP8AMP_HAS_CUDA)
  add_library(fp8amp_cuda OBJECT ${FP8AMP_CUDA_KERNELS} ${FP8AMP_CUDA_SOURCES})
  target_link_libraries(fp8amp_cuda PRIVATE fp8amp_settings)
  fp8amp_cuda_target(fp8amp_cuda)
  target_compile_definitions(fp8amp_core PRIVATE FP8AMP_HAS_CUDA)
  list(APPEND FP8AMP_OBJECTS $<TARGET_OBJECTS:fp8amp_cuda>)
else()
  target_sources(fp8amp_core PRIVATE ${PROJECT_SOURCE_DIR}/kernels/cuda/no_cuda.cpp)
endif()

# ---- fp8amp: the shared library, exports the public API only -----------------------------------------------------------
add_library(fp8amp SHARED ${FP8AMP_OBJECTS})
add_library(fp8amp::fp8amp ALIAS fp8amp)
set_target_properties(fp8amp PROPERTIES LINKER_LANGUAGE CXX)
target_compile_features(fp8amp PUBLIC cxx_std_20)
target_include_directories(fp8amp PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(fp8amp PRIVATE Threads::Threads)
if(NOT FP8AMP_SANITIZE) # the sanitizers' own symbols are found in the executable
  target_link_options(fp8amp PRIVATE -Wl,--no-undefined)
endif()
if(NOT FP8AMP_PYTHON) # a wheel cannot hold symlinks: one file there, no version in its soname
  set_target_properties(fp8amp PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endif()

# ---- fp8amp_internals: the same objects for the tests, which reach kernels and numerics too ----------------------------
add_library(fp8amp_internals INTERFACE)
target_sources(fp8amp_internals INTERFACE ${FP8AMP_OBJECTS})
target_link_libraries(fp8amp_internals INTERFACE fp8amp_settings)

if(FP8AMP_HAS_CUDA)
  fp8amp_cuda_link(fp8amp PRIVATE)
  fp8amp_cuda_link(fp8amp_internals INTERFACE)
endif()
