// Kernels on grids that are smaller than their work: what a block does after its first turn. The
// launchers take such grids for tensors that are too large for a test.
#include "kernels/cuda/blocks.cuh"
#include "kernels/fused.h"
#include "tests/emulator/cuda_data.h"
#include "tests/emulator/cuda_emu.h"
#include "tests/emulator/fake_runtime.h"

namespace fp8amp {
namespace {

using namespace kernels;
using kernels::cuda::BlocksParams;
using test::Data;

constexpr DType k32 = DType::kFloat32, k43 = DType::kE4M3;
constexpr std::int64_t kRows = 272, kCols = 400;  // 3 x 4 tiles

// A GPU with one processor, whose facts no other test has asked for.
struct SmallGpu {
  SmallGpu() {
    fake_cuda::reset({.devices = 4, .multiprocessors = 1});
    EXPECT_EQ(cudaSetDevice(3), cudaSuccess);
  }
  ~SmallGpu() { fake_cuda::reset(); }
};

TEST(CudaGrids, Casts) {
  const SmallGpu gpu;
  const std::int64_t n = 70001;  // 8 blocks take 32,768 a turn
  const Data x = test::random_data(k32, n, 1, 3.0f);
  for (Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
    Data host(k43, n), device(k43, n);
    float host_scale = 0, device_scale = 0, host_amax = 0, device_amax = 0;
    QuantizeArgs a{};
    a.x = x.get(), a.x_type = k32, a.n = n, a.format = k43, a.rounding = rounding;
    a.y = host.get(), a.scale_inv = &host_scale, a.amax = &host_amax;
    cpu::quantize(a);
    a.y = device.get(), a.scale_inv = &device_scale, a.amax = &device_amax;
    cuda::quantize(a);
    EXPECT_EQ(host.difference(device), "equal");
    EXPECT_EQ(host_scale, device_scale);
    EXPECT_EQ(host_amax, device_amax);
  }
}

TEST(CudaGrids, RowsOfNorms) {
  const SmallGpu gpu;
  const std::int64_t rows = 150, cols = 48;  // 8 blocks take 64 rows a turn
  const Data x = test::random_data(k32, rows * cols, 1, 3.0f),
             gamma = test::random_data(k32, cols, 2);
  Data host(k43, rows * cols), device(k43, rows * cols);
  std::vector<float> host_rstd(rows), device_rstd(rows);
  float host_scale = 0, device_scale = 0;
  FusedArgs a{};
  a.op = FusedOp::kNorm, a.x = x.get(), a.x_type = k32, a.eps = 1e-5f;
  a.gamma = static_cast<const float*>(gamma.get());
  a.cast.format = k43, a.cast.n = rows * cols, a.cast.rows = rows, a.cast.cols = cols;
  a.cast.y = host.get(), a.cast.scale_inv = &host_scale, a.rstd = host_rstd.data();
  cpu::fused_quantize(a);
  a.cast.y = device.get(), a.cast.scale_inv = &device_scale, a.rstd = device_rstd.data();
  cuda::fused_quantize(a);
  EXPECT_EQ(host.difference(device), "equal");
  EXPECT_EQ(host_rstd, device_rstd);
  EXPECT_EQ(host_scale, device_scale);
}

TEST(CudaGrids, TransposedTiles) {
  const Data x = test::random_data(k32, kRows * kCols, 1, 3.0f);
  const float scale = 20.0f;
  Data host(k43, kRows * kCols), host_t = host, device = host, device_t = host;
  float scale_inv = 0;
  QuantizeArgs a{};
  a.x = x.get(), a.x_type = k32, a.n = kRows * kCols, a.format = k43;
  a.y = host.get(), a.transposed = host_t.as<std::uint8_t>(), a.rows = kRows, a.cols = kCols;
  a.source = ScaleSource::kGiven, a.scale = &scale, a.scale_inv = &scale_inv;
  cpu::quantize(a);
  kernels::cuda::TransposeParams p{};
  p.cast.in = {x.get(), nullptr, kRows * kCols, 0};
  p.cast.y = device.get();
  p.cast.choice.source = ScaleSource::kGiven;
  p.cast.choice.scale = &scale;
  p.transposed = device_t.as<std::uint8_t>();
  p.rows = kRows, p.cols = kCols;
  p.aligned_rows = p.aligned_cols = true;
  for (unsigned grid : {1u, 5u})
    emu::for_each_schedule([&] {
      FP8AMP_LAUNCH((kernels::cuda::quantize_transpose_kernel<k32, numerics::E4M3, false>),
                    dim3(grid), dim3(kernels::cuda::kThreads), 0, nullptr, p);
      EXPECT_EQ(host.difference(device), "equal");
      EXPECT_EQ(host_t.difference(device_t), "equal");
    });
}

// Both outputs of [kRows, kCols] with a scale for each row or block.
struct Blocks {
  ScaleGranularity granularity;
  Data y, transposed, scales, transposed_scales;
  explicit Blocks(ScaleGranularity g)
      : granularity(g),
        y(k43, kRows * kCols),
        transposed(y),
        scales(k32, numerics::scale_layout(g, kRows, kCols).size),
        transposed_scales(k32, numerics::scale_layout(g, kCols, kRows).size) {}
  BlockOutput out() { return {y.as<std::uint8_t>(), scales.as<float>()}; }
  BlockOutput out_transposed() {
    return {transposed.as<std::uint8_t>(), transposed_scales.as<float>()};
  }
  void expect_equal(const Blocks& other) const {
    EXPECT_EQ(y.difference(other.y), "equal");
    EXPECT_EQ(transposed.difference(other.transposed), "equal");
    EXPECT_EQ(scales.difference(other.scales), "equal");
    EXPECT_EQ(transposed_scales.difference(other.transposed_scales), "equal");
  }
};

template <ScaleGranularity G>
void launch(const BlocksParams& p, BlocksParams columns, dim3 grid) {
  const dim3 threads(kernels::cuda::kThreads);
  if constexpr (G == ScaleGranularity::kRow) {
    FP8AMP_LAUNCH((kernels::cuda::quantize_rows_kernel<k32, numerics::E4M3, 32>), grid, threads, 0,
                  nullptr, p);
    FP8AMP_LAUNCH((kernels::cuda::column_amax_kernel<k32>), grid, threads, 0, nullptr, columns);
  }
  FP8AMP_LAUNCH((kernels::cuda::quantize_tiles_kernel<k32, numerics::E4M3, G>), grid, threads, 0,
                nullptr, G == ScaleGranularity::kRow ? columns : p);
}

template <ScaleGranularity G>
void expect_grids_do_not_matter() {
  const Data x = test::random_data(k32, kRows * kCols, 1, 3.0f);
  Blocks host(G);
  QuantizeBlocksArgs a{};
  a.x = x.get(), a.x_type = k32, a.rows = kRows, a.cols = kCols, a.format = k43;
  a.granularity = G, a.out = host.out(), a.transposed = host.out_transposed();
  cpu::quantize_blocks(a);
  for (unsigned grid : {1u, 5u})
    emu::for_each_schedule([&] {
      Blocks device(G);
      Data column_amax(k32, kCols);  // of zeros
      BlocksParams p{};
      p.x = x.get(), p.rows = kRows, p.cols = kCols, p.format_max = format_max(k43);
      p.out = device.out(), p.transposed = device.out_transposed();
      p.layout = numerics::scale_layout(G, kRows, kCols);
      p.transposed_layout = numerics::scale_layout(G, kCols, kRows);
      p.aligned_rows = p.aligned_cols = true;
      BlocksParams columns = p;
      columns.out = {};
      columns.column_amax = column_amax.as<std::uint32_t>();
      launch<G>(p, columns, dim3(grid));
      host.expect_equal(device);
    });
}

TEST(CudaGrids, ScalesOfRows) { expect_grids_do_not_matter<ScaleGranularity::kRow>(); }
TEST(CudaGrids, ScalesOfPieces) { expect_grids_do_not_matter<ScaleGranularity::kBlock1x128>(); }
TEST(CudaGrids, ScalesOfSquares) { expect_grids_do_not_matter<ScaleGranularity::kBlock128x128>(); }

}  // namespace
}  // namespace fp8amp
