// The cuBLASLt functions in use, as a table: filled from the library at first use, or by a test.
//
// Descriptors come from *Create only: the *Init inlines of the header put structs on the stack
// whose size differs between 13.1 and 13.4.
#pragma once
#include <cublasLt.h>

#include <cstddef>
#include <string>

namespace fp8amp::gpu {

struct CublasLt {
  std::string path;
#define FP8AMP_CUBLASLT_FUNCTIONS(F) \
  F(GetVersion)                      \
  F(GetStatusString)                 \
  F(Create)                          \
  F(Destroy)                         \
  F(MatmulDescCreate)                \
  F(MatmulDescDestroy)               \
  F(MatmulDescSetAttribute)          \
  F(MatmulDescGetAttribute)          \
  F(MatrixLayoutCreate)              \
  F(MatrixLayoutDestroy)             \
  F(MatrixLayoutGetAttribute)        \
  F(MatmulPreferenceCreate)          \
  F(MatmulPreferenceDestroy)         \
  F(MatmulPreferenceSetAttribute)    \
  F(MatmulAlgoGetHeuristic)          \
  F(Matmul)
#define F(name) decltype(&cublasLt##name) name = nullptr;
  FP8AMP_CUBLASLT_FUNCTIONS(F)
#undef F
};

CublasLt load_cublaslt();       // a fresh table from the library; throws Error
const CublasLt& cublaslt();     // the process's table; the first call loads it
std::string cublaslt_status();  // "<path>, version 13.1.0", or why not; loads the library

// Throws Error with the call, the status and the library.
void check(const CublasLt& lt, cublasStatus_t status, const char* call);

}  // namespace fp8amp::gpu
