// Sum of FP8 shards of the CUDA backend, on the emulator: every bit is the CPU backend's.
#include <deque>

#include "kernels/shards.h"
#include "tests/emulator/cuda_data.h"
#include "tests/emulator/cuda_emu.h"
#include "tests/emulator/fake_runtime.h"

namespace fp8amp {
namespace {

using namespace kernels;
using test::Data;

struct Sum {
  std::deque<Data> data{};
  std::deque<float> scales{};
  DType format;
  std::int64_t offset;
  const float* scale = nullptr;
  const float* bound = nullptr;
  bool amax = true;

  Sum(int count, DType type, DType out, std::int64_t n, std::int64_t misaligned = 0)
      : format(out), offset(misaligned) {
    for (int s = 0; s < count; ++s) {
      data.push_back(test::random_data(type, n, std::uint32_t(s), 1.0f, offset));
      scales.push_back(0.01f * float(s + 1));
    }
  }
  struct Written {
    Data y;
    float scale_inv = -1, amax = -1, found_inf = 0;
  };
  Written run(void (*sum_shards)(const SumShardsArgs&)) const {
    Written w{Data(format, data[0].size(), offset)};
    std::vector<Shard> shards;
    for (std::size_t s = 0; s < data.size(); ++s) shards.push_back({data[s].get(), &scales[s]});
    SumShardsArgs a{};
    a.shards = shards;
    a.x_type = data[0].type();
    a.y = w.y.get();
    a.format = format;
    a.scale_inv = &w.scale_inv;
    a.n = w.y.size();
    a.factor = 1.0f / float(data.size());
    a.scale_rounding = ScaleRounding::kPowerOfTwo;
    a.scale = scale;
    a.bound = bound;
    a.amax = amax ? &w.amax : nullptr;
    a.found_inf = &w.found_inf;
    sum_shards(a);
    return w;
  }
  void expect_equal() const {
    const Written host = run(cpu::sum_shards), device = run(cuda::sum_shards);
    EXPECT_EQ(host.y.difference(device.y), "equal");
    EXPECT_EQ(host.scale_inv, device.scale_inv);
    EXPECT_TRUE(test::same(host.amax, device.amax)) << host.amax << " and " << device.amax;
    EXPECT_EQ(host.found_inf, device.found_inf);
  }
};

constexpr DType kFormats[] = {DType::kE4M3, DType::kE5M2};

TEST(CudaSumShards, FormatsAndSizes) {
  const float scale = 100.0f, bound = 7.0f;
  for (DType type : kFormats)
    for (DType format : kFormats)
      for (int count : {1, 2, 5})
        for (std::int64_t n : {0, 1, 15, 16, 17, 1000, 9000}) {
          if (test::quick() && type != format) continue;
          for (std::int64_t offset : {0, 1}) {
            SCOPED_TRACE(std::to_string(count) + " of " + std::to_string(n));
            Sum sum(count, type, format, n, offset);
            sum.expect_equal();
            sum.amax = false, sum.expect_equal();
            sum.bound = &bound, sum.expect_equal();
            sum.amax = true, sum.expect_equal();
            sum.bound = nullptr, sum.scale = &scale, sum.expect_equal();
          }
        }
}

TEST(CudaSumShards, ManyRanks) { Sum(1024, DType::kE4M3, DType::kE4M3, 50).expect_equal(); }

TEST(CudaSumShards, Specials) {
  for (DType type : kFormats) {
    Sum sum(3, type, DType::kE4M3, 400);
    test::add_specials(sum.data[1]);
    sum.expect_equal();
    Sum huge(3, type, DType::kE5M2, 400);
    for (float& s : huge.scales) s = 0x1p120f;
    huge.expect_equal();
  }
}

TEST(CudaSumShards, AnySchedule) {
  emu::for_each_schedule([&] { Sum(3, DType::kE5M2, DType::kE4M3, 9000).expect_equal(); });
}

TEST(CudaSumShards, Launches) {
  const float bound = 1.0f;
  Sum sum(4, DType::kE4M3, DType::kE4M3, 100);
  fake_cuda::reset_counters();
  sum.run(cuda::sum_shards);
  EXPECT_EQ(fake_cuda::counters().launches, 2);
  sum.bound = &bound, sum.amax = false;
  fake_cuda::reset_counters();
  sum.run(cuda::sum_shards);
  EXPECT_EQ(fake_cuda::counters().launches, 1);
  EXPECT_EQ(fake_cuda::counters().memsets, 0);
}

}  // namespace
}  // namespace fp8amp
