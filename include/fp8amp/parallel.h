// Threads of the CPU backend. Results never depend on their number.
#pragma once
#include <fp8amp/export.h>

#include <cstdint>
#include <functional>

namespace fp8amp {

using RangeFunction = std::function<void(std::int64_t begin, std::int64_t end)>;
// Calls body on disjoint ranges that cover [begin, end), each of at least `grain` elements where
// possible, and returns when all are done. end - begin must fit in 64 bits.
using ParallelFor = std::function<void(std::int64_t begin, std::int64_t end, std::int64_t grain,
                                       const RangeFunction& body)>;

// The library's own pool has one thread per core. An application with a pool of its own (PyTorch)
// hands it over here, once, before use.
FP8AMP_API void set_parallel_for(ParallelFor executor);
// Of the library's own pool, >= 1; not from inside a body of parallel_for (Error).
FP8AMP_API void set_num_threads(int n);
FP8AMP_API int num_threads();

FP8AMP_API void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain,
                             const RangeFunction& body);

}  // namespace fp8amp
