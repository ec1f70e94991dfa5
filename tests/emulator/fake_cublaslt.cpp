#include "tests/emulator/fake_cublaslt.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "kernels/element.h"
#include "tests/emulator/fake_cublaslt_scales.h"
#include "tests/emulator/fake_state.h"

namespace fake_cublaslt {
namespace {

struct Descriptor {  // of an operation or a preference
  std::map<int, std::vector<unsigned char>> attributes;
  template <class T>
  T get(int attribute, T otherwise = {}) const {
    const auto found = attributes.find(attribute);
    if (found == attributes.end()) return otherwise;
    T value;
    std::memcpy(&value, found->second.data(), sizeof value);
    return value;
  }
};
struct Layout {
  cudaDataType_t type;
  std::int64_t rows, columns, ld;
};

struct Library {
  std::recursive_mutex mutex;  // cuBLASLt may be called by several threads
  int compute_capability = 90;
  std::size_t version = 130100;
  std::int64_t block_multiple = 4;
  int alive = 0, until_failure = 0;
  bool failed = false;
  std::map<std::string, std::int64_t> calls;
  std::map<int, int> durations;
  std::vector<Product> products;
  std::string refused;
};
Library& library() {
  static Library l;
  return l;
}

using Lock = std::lock_guard<std::recursive_mutex>;

bool enter(const char* function) {  // false: this call fails
  const Lock lock(library().mutex);
  Library& l = library();
  ++l.calls[function];
  if (l.until_failure == 0 || --l.until_failure != 0) return true;
  l.failed = true;
  return false;
}

cublasStatus_t refuse(const std::string& why, cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED) {
  library().refused = why;
  return status;
}

template <class Handle, class Object>
cublasStatus_t create(const char* function, Handle* handle, Object object) {
  *handle = nullptr;
  if (!enter(function)) return CUBLAS_STATUS_ALLOC_FAILED;
  const Lock lock(library().mutex);
  ++library().alive;
  *handle = reinterpret_cast<Handle>(new Object(std::move(object)));
  return CUBLAS_STATUS_SUCCESS;
}

template <class Object, class Handle>
cublasStatus_t destroy(Handle handle) {
  const Lock lock(library().mutex);
  --library().alive;
  delete reinterpret_cast<Object*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

std::size_t size_of_attribute(int attribute) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM: return 1;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return 8;
    default: return 4;
  }
}

cublasStatus_t set(Descriptor& d, int attribute, const void* data, std::size_t bytes,
                   std::size_t expected) {
  if (bytes != expected) return refuse("size of an attribute", CUBLAS_STATUS_INVALID_VALUE);
  const auto* p = static_cast<const unsigned char*>(data);
  d.attributes[attribute].assign(p, p + bytes);
  return CUBLAS_STATUS_SUCCESS;
}

struct Problem {
  const Descriptor& op;
  const Layout &a, &b, &c, &d;
  bool transpose_a() const { return op.get<int>(CUBLASLT_MATMUL_DESC_TRANSA) == CUBLAS_OP_T; }
  bool transpose_b() const { return op.get<int>(CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_T; }
  std::int64_t m() const { return d.rows; }
  std::int64_t n() const { return d.columns; }
  std::int64_t k() const { return transpose_a() ? a.rows : a.columns; }
  bool bias() const {
    return op.get<int>(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT) ==
           CUBLASLT_EPILOGUE_BIAS;
  }
};

Scales a_scales(const Problem& p) {
  return {p.op.get<int>(CUBLASLT_MATMUL_DESC_A_SCALE_MODE),
          p.op.get<const float*>(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER), p.m(), p.k()};
}
Scales b_scales(const Problem& p) {
  return {p.op.get<int>(CUBLASLT_MATMUL_DESC_B_SCALE_MODE),
          p.op.get<const float*>(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER), p.n(), p.k()};
}

std::string illegal_fp8(const Problem& p, int cc) {
  if (cc < 89) return "no FP8 on this GPU";
  if (p.a.type == CUDA_R_8F_E5M2 && p.b.type == CUDA_R_8F_E5M2) return "E5M2 x E5M2";
  const bool tn = p.transpose_a() && !p.transpose_b();
  if (!tn && cc / 10 != 10) return "not TN";
  for (std::int64_t size : {p.a.rows, p.b.rows, p.a.ld, p.b.ld})
    if (size % 16) return "FP8 size or leading dimension not a multiple of 16";
  if (p.m() * bytes_of(p.d.type) % 16) return "rows of D";
  if (p.d.ld * bytes_of(p.d.type) % 16) return "leading dimension of D";
  return illegal_scales(a_scales(p), b_scales(p),
                        p.op.get<std::int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM) != 0, cc,
                        library().version, library().block_multiple);
}

std::string illegal(const Problem& p, int cc) {
  const std::int64_t ka = p.k(), kb = p.transpose_b() ? p.b.columns : p.b.rows;
  const std::int64_t m = p.transpose_a() ? p.a.columns : p.a.rows,
                     n = p.transpose_b() ? p.b.rows : p.b.columns;
  if (ka != kb || m != p.m() || n != p.n()) return "sizes do not match";
  if (p.c.type != p.d.type || p.c.rows != p.d.rows || p.c.ld != p.d.ld) return "C is not like D";
  for (const Layout* x : {&p.a, &p.b, &p.d})
    if (x->ld < x->rows || x->rows <= 0 || x->columns <= 0) return "leading dimension below rows";
  if (p.bias()) {
    const int wanted = p.d.type == CUDA_R_32F ? CUDA_R_16BF : p.d.type;
    if (p.op.get<int>(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, -1) != wanted) return "type of bias";
    const auto address = p.op.get<std::uintptr_t>(CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    if (address == 0 || address % 16) return "bias pointer";
  }
  if (fp8(p.a.type) || fp8(p.b.type)) return illegal_fp8(p, cc);
  if (p.a.type != p.b.type || (p.d.type != p.a.type && p.d.type != CUDA_R_32F)) return "types";
  for (int attribute : {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_FAST_ACCUM})
    if (p.op.attributes.count(attribute)) return "FP8 attribute of a 16-bit product";
  return "";
}

// What makes an algorithm belong to a problem.
std::uint64_t fingerprint(const Problem& p) {
  std::uint64_t h = 17;
  for (const Layout* x : {&p.a, &p.b, &p.d})
    for (std::int64_t v : {std::int64_t(x->type), x->rows, x->columns, x->ld})
      h = h * 1000003 + std::uint64_t(v);
  h = h * 64 + std::uint64_t(a_scales(p).mode * 8 + b_scales(p).mode);
  return h * 4 + p.bias() * 2 + p.op.get<std::int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM);
}

std::vector<float> decode(const void* x, const Layout& l, bool k_is_rows) {  // [other][k]
  const std::int64_t others = k_is_rows ? l.columns : l.rows, k = k_is_rows ? l.rows : l.columns;
  std::vector<float> values(std::size_t(others * k));
  for (std::int64_t o = 0; o < others; ++o)
    for (std::int64_t i = 0; i < k; ++i)
      values[std::size_t(o * k + i)] =
          fp8amp::kernels::load_element(x, dtype(l.type), k_is_rows ? o * l.ld + i : i * l.ld + o);
  return values;
}

struct Work {
  Descriptor op;
  Layout la, lb, ld;
  const void *a, *b;
  void* d;
  float beta;
  int milliseconds;

  void operator()() const {
    using namespace fp8amp::kernels;
    const Problem p{op, la, lb, ld, ld};
    const std::int64_t m = p.m(), n = p.n(), k = p.k();
    const Scales as = a_scales(p), bs = b_scales(p);
    const std::int64_t width = as.along_k() || bs.along_k() ? 128 : k;
    const void* bias = p.bias() ? op.get<const void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER) : nullptr;
    const std::vector<float> av = decode(a, la, p.transpose_a()),
                             bv = decode(b, lb, !p.transpose_b());
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t i = 0; i < m; ++i) {
        float value = 0;
        for (std::int64_t first = 0; first < k; first += width) {
          float sum = 0;
          for (std::int64_t kk = first; kk < std::min(k, first + width); ++kk)
            sum = sum + bv[std::size_t(j * k + kk)] * av[std::size_t(i * k + kk)];
          sum = sum * bs.at(j, first) * as.at(i, first);
          value = first ? value + sum : sum;
        }
        if (bias)
          value =
              value +
              load_element(
                  bias, dtype(cudaDataType_t(op.get<int>(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE))), i);
        if (beta != 0) value = load_element(d, dtype(ld.type), j * ld.ld + i) + value;
        store_element(d, dtype(ld.type), j * ld.ld + i, value);
      }
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  }
};

std::string bad_pointer(const void* p, std::uint32_t promised, const Layout& l) {
  if (reinterpret_cast<std::uintptr_t>(p) % promised) return "pointer less aligned than promised";
  const std::size_t bytes = std::size_t(((l.columns - 1) * l.ld + l.rows) * bytes_of(l.type));
  return fake_cuda::check_range(p, bytes) == cudaSuccess ? "" : "matrix beyond its memory";
}

// ---- the functions -----------------------------------------------------------------------------

struct Promise {
  std::uint64_t workspace;
  std::uint32_t a, b, d;
};
static_assert(sizeof(Promise) + 16 <= sizeof(cublasLtMatmulAlgo_t));

cublasStatus_t heuristic(cublasLtHandle_t, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                         cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
                         int requested, cublasLtMatmulHeuristicResult_t* results, int* found) {
  *found = 0;
  if (!enter("MatmulAlgoGetHeuristic")) return CUBLAS_STATUS_INTERNAL_ERROR;
  const auto layout = [](auto x) -> const Layout& { return *reinterpret_cast<const Layout*>(x); };
  const Problem p{*reinterpret_cast<Descriptor*>(op), layout(a), layout(b), layout(c), layout(d)};
  if (const std::string why = illegal(p, library().compute_capability); !why.empty())
    return refuse(why);
  const auto& wish = *reinterpret_cast<Descriptor*>(preference);
  const auto alignment = [&](int attribute) { return wish.get<std::uint32_t>(attribute, 256); };
  const Promise promise{wish.get<std::uint64_t>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES),
                        alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES),
                        alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES),
                        alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)};
  for (*found = 0; *found < std::min(requested, 3); ++*found) {
    cublasLtMatmulHeuristicResult_t& r = results[*found];
    r = {};
    r.algo.data[0] = fingerprint(p);
    r.algo.data[1] = std::uint64_t(*found);
    std::memcpy(&r.algo.data[2], &promise, sizeof promise);
    r.workspaceSize = promise.workspace;
    r.state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void* alpha,
                      const void* a, cublasLtMatrixLayout_t la, const void* b,
                      cublasLtMatrixLayout_t lb, const void* beta, const void* c,
                      cublasLtMatrixLayout_t lc, void* d, cublasLtMatrixLayout_t ld,
                      const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                      std::size_t workspace_bytes, cudaStream_t stream) {
  if (!enter("Matmul")) return CUBLAS_STATUS_EXECUTION_FAILED;
  const fake_cuda::Lock runtime(fake_cuda::state().mutex);
  const Lock lock(library().mutex);
  const auto layout = [](auto x) -> const Layout& { return *reinterpret_cast<const Layout*>(x); };
  const Problem p{*reinterpret_cast<Descriptor*>(op), layout(la), layout(lb), layout(lc),
                  layout(ld)};
  const auto invalid = [](const std::string& why) {
    return refuse(why, CUBLAS_STATUS_INVALID_VALUE);
  };
  if (const std::string why = illegal(p, library().compute_capability); !why.empty())
    return refuse(why);
  if (!handle || !algorithm || algorithm->data[0] != fingerprint(p))
    return invalid("algorithm of another problem");
  Promise promise;
  std::memcpy(&promise, &algorithm->data[2], sizeof promise);
  if (workspace_bytes < promise.workspace || reinterpret_cast<std::uintptr_t>(workspace) % 256 ||
      fake_cuda::check_range(workspace, workspace_bytes) != cudaSuccess)
    return invalid("workspace");
  for (const std::string& why :
       {bad_pointer(a, promise.a, p.a), bad_pointer(b, promise.b, p.b),
        bad_pointer(d, promise.d, p.d), bad_scales(a_scales(p)), bad_scales(b_scales(p))})
    if (!why.empty()) return invalid(why);
  const float scale = *static_cast<const float*>(beta);
  if (*static_cast<const float*>(alpha) != 1.0f || (scale != 0 && c != d))
    return invalid("alpha, C");
  Library& l = library();
  const int choice = int(algorithm->data[1]);
  l.products.push_back({p.m(),
                        p.n(),
                        p.k(),
                        p.a.ld,
                        p.b.ld,
                        p.d.ld,
                        p.a.type,
                        p.b.type,
                        p.d.type,
                        p.transpose_a(),
                        p.transpose_b(),
                        p.op.get<std::int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM) != 0,
                        p.bias(),
                        a,
                        b,
                        d,
                        scale,
                        choice,
                        workspace_bytes,
                        a_scales(p).mode,
                        b_scales(p).mode});
  if (fake_cuda::check_stream(stream) != cudaSuccess) return invalid("stream");
  fake_cuda::enqueue(stream, Work{p.op, p.a, p.b, p.d, a, b, d, scale, l.durations[choice]});
  return CUBLAS_STATUS_SUCCESS;
}

void fill_descriptors(fp8amp::gpu::CublasLt& t) {
  t.MatmulDescCreate = [](cublasLtMatmulDesc_t* h, cublasComputeType_t, cudaDataType_t) {
    return create("MatmulDescCreate", h, Descriptor{});
  };
  t.MatmulDescDestroy = [](cublasLtMatmulDesc_t h) { return destroy<Descriptor>(h); };
  t.MatmulDescSetAttribute = [](cublasLtMatmulDesc_t h, cublasLtMatmulDescAttributes_t attribute,
                                const void* data, std::size_t bytes) {
    if (!enter("MatmulDescSetAttribute")) return CUBLAS_STATUS_INVALID_VALUE;
    return set(*reinterpret_cast<Descriptor*>(h), attribute, data, bytes,
               size_of_attribute(attribute));
  };
  t.MatrixLayoutCreate = [](cublasLtMatrixLayout_t* h, cudaDataType_t type, std::uint64_t rows,
                            std::uint64_t columns, std::int64_t ld) {
    return create("MatrixLayoutCreate", h,
                  Layout{type, std::int64_t(rows), std::int64_t(columns), ld});
  };
  t.MatrixLayoutDestroy = [](cublasLtMatrixLayout_t h) { return destroy<Layout>(h); };
  t.MatmulPreferenceCreate = [](cublasLtMatmulPreference_t* h) {
    return create("MatmulPreferenceCreate", h, Descriptor{});
  };
  t.MatmulPreferenceDestroy = [](cublasLtMatmulPreference_t h) { return destroy<Descriptor>(h); };
  t.MatmulPreferenceSetAttribute = [](cublasLtMatmulPreference_t h,
                                      cublasLtMatmulPreferenceAttributes_t attribute,
                                      const void* data, std::size_t bytes) {
    if (!enter("MatmulPreferenceSetAttribute")) return CUBLAS_STATUS_INVALID_VALUE;
    const bool workspace = attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    return set(*reinterpret_cast<Descriptor*>(h), attribute, data, bytes, workspace ? 8 : 4);
  };
}

}  // namespace

const fp8amp::gpu::CublasLt& table() {
  static const fp8amp::gpu::CublasLt all = [] {
    fp8amp::gpu::CublasLt t;
    t.path = "fake cuBLASLt";
    t.GetVersion = [] { return library().version; };
    t.GetStatusString = [](cublasStatus_t) { return "fake status"; };
    t.Create = [](cublasLtHandle_t* h) { return create("Create", h, Descriptor{}); };
    t.Destroy = [](cublasLtHandle_t h) { return destroy<Descriptor>(h); };
    fill_descriptors(t);
    t.MatmulAlgoGetHeuristic = heuristic;
    t.Matmul = matmul;
    return t;
  }();
  return all;
}

void reset(int compute_capability, std::size_t version) {
  Library& l = library();
  const Lock lock(l.mutex);
  l.compute_capability = compute_capability;
  l.version = version;
  l.block_multiple = 4;
  l.until_failure = 0;
  l.failed = false;
  l.calls.clear();
  l.durations.clear();
  l.products.clear();
  l.refused.clear();
}

const std::vector<Product>& products() { return library().products; }
std::int64_t calls(const std::string& function) { return library().calls[function]; }
int alive() { return library().alive; }
const std::string& refused() { return library().refused; }
void set_block_multiple(std::int64_t multiple) { library().block_multiple = multiple; }
void fail_call(int n) {
  library().until_failure = n;
  library().failed = false;
}
bool failed() { return library().failed; }
void set_duration(int algorithm, int milliseconds) {
  library().durations[algorithm] = milliseconds;
}

}  // namespace fake_cublaslt
