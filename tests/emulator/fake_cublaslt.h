// A cuBLASLt without a GPU: descriptors that record their attributes, a search that knows the rules
// of the documentation, and a matrix product on the CPU, one FP32 chain in the order of k per
// element. Work goes to the fake CUDA runtime's streams and is recorded in captures.
//
// It refuses, as the real one does, what is illegal for the compute capability; and it refuses what
// the real one does not check but needs: attributes of the wrong size, pointers that are less
// aligned than promised, a workspace that is unaligned or larger than its memory, an algorithm of
// another problem.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "src/cuda/cublaslt.h"

namespace fake_cublaslt {

// Forgets everything; the library then behaves as on a GPU of this compute capability.
void reset(int compute_capability, std::size_t version = 130100);
const fp8amp::gpu::CublasLt& table();

// One product that was enqueued, in cuBLASLt's terms (column-major).
struct Product {
  std::int64_t m, n, k, lda, ldb, ldd;
  cudaDataType_t a_type, b_type, d_type;
  bool transpose_a, transpose_b, fast_accumulation, bias;
  const void *a, *b, *d;
  float beta;
  int algorithm;
  std::size_t workspace_bytes;
  int a_scale_mode, b_scale_mode;
};
const std::vector<Product>& products();
std::int64_t calls(const std::string& function);  // "Matmul", "MatmulAlgoGetHeuristic", ...
int alive();                                      // handles and descriptors that exist
const std::string& refused();                     // why the last refused call was refused

// Block scales need M and N in multiples of this: 4 after a reset, as documented.
void set_block_multiple(std::int64_t multiple);
// The n-th call (from 1, counted from now) of any function fails.
void fail_call(int n);
bool failed();  // it has happened
// Milliseconds that a product by the i-th algorithm takes, 0 by default.
void set_duration(int algorithm, int milliseconds);

}  // namespace fake_cublaslt
