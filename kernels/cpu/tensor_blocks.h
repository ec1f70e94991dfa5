// A list of tensors as one row of blocks, spread evenly over the threads: many small tensors
// balance as well as one large one.
#pragma once
#include <fp8amp/parallel.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fp8amp::kernels::cpu {

inline constexpr std::int64_t kBlockElements = 512;

// Calls body(tensor, first, n) on runs of elements that cover every tensor (anything with a member
// n) once; `first` is a multiple of kBlockElements. At least `grain` blocks per thread.
template <class Tensor, class Body>
void for_each_run(std::span<const Tensor> tensors, std::int64_t grain, const Body& body) {
  std::vector<std::int64_t> end;  // of the blocks of each tensor
  end.reserve(tensors.size());
  std::int64_t blocks = 0;
  for (const Tensor& t : tensors)
    end.push_back(blocks += (t.n + kBlockElements - 1) / kBlockElements);
  parallel_for(0, blocks, grain, [&](std::int64_t from, std::int64_t to) {
    std::size_t i =
        static_cast<std::size_t>(std::upper_bound(end.begin(), end.end(), from) - end.begin());
    for (; from < to; ++i) {
      const std::int64_t stop = std::min(to, end[i]);
      if (stop <= from) continue;
      const std::int64_t start = i == 0 ? 0 : end[i - 1];
      const std::int64_t first = (from - start) * kBlockElements;
      body(i, first, std::min((stop - start) * kBlockElements, tensors[i].n) - first);
      from = stop;
    }
  });
}

}  // namespace fp8amp::kernels::cpu
