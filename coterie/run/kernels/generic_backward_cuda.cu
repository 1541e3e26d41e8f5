// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "coterie/run/kernels/backward_cuda.hpp"
#include "coterie/run/kernels/generic_tile.cuh"
#include "coterie/run/kernels/overlap.cuh"

/// Backward products on any GPU from compute capability 8.0: mma.sync for bf16 and fp16, plain
/// multiply-adds for fp32. One simple tile for all of them: 64 x 64, operands turned on their way
/// into shared memory so that K lies inside. Sums run along K in one order; bits differ from the
/// Hopper kernels', whose groups are others.
namespace coterie::kernels::cuda {
namespace {

struct RowsArguments {
  RowSource x;
  const std::int32_t* row_of;
  const std::int32_t* offsets;
  int num_experts;
  int depth;
  int columns;
  const void* weights;
  void* y;
  std::int64_t y_stride;
};

/// y[r] = w[e]^T x[row_of[r]]; block x: columns, block y: expert.
template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    rows_kernel(const __grid_constant__ RowsArguments task) {
  __shared__ Stage<T> stage;
  begin_after_previous();
  const int thread = static_cast<int>(threadIdx.x);
  const int first_column = static_cast<int>(blockIdx.x) * kTile;
  const int end = task.offsets[blockIdx.y + 1];
  const T* const weights =
      static_cast<const T*>(task.weights) + std::int64_t{blockIdx.y} * task.depth * task.columns;
  for (int first = task.offsets[blockIdx.y]; first < end; first += kTile) {
    Sums<T> sums;
    for (int k0 = 0; k0 < task.depth; k0 += kStep) {
      __syncthreads();
      for (int i = thread; i < kTile * kStep; i += kTileThreads) {
        const int r = first + i / kStep;
        const int k = k0 + i % kStep;
        T value{};
        if (r < end && k < task.depth) {
          const std::int64_t row = task.row_of != nullptr ? task.row_of[r] : r;
          value = reinterpret_cast<const T*>(task.x.row(row))[k];
        }
        stage.a[i / kStep][i % kStep] = value;
        const int column = first_column + i % kTile;
        const int wk = k0 + i / kTile;
        stage.b[i % kTile][i / kTile] = column < task.columns && wk < task.depth
                                            ? weights[std::int64_t{wk} * task.columns + column]
                                            : T{};
      }
      __syncthreads();
      sums.add(stage);
    }
    sums.for_each([&](int r, int c, float sum) {
      if (first + r < end && first_column + c < task.columns) {
        from_float(
            static_cast<T*>(task.y) + (std::int64_t{first} + r) * task.y_stride + first_column + c,
            sum);
      }
    });
  }
}

struct WeightsArguments {
  RowSource a;
  RowSource b;
  const std::int32_t* a_rows;
  const std::int32_t* b_rows;
  int a_columns;
  int b_columns;
  const std::int32_t* offsets;
  void* out;
  bool accumulate;
};

template <typename T>
__device__ T element(const RowSource& source, const std::int32_t* rows, std::int64_t r, int column,
                     int columns) {
  return column < columns
             ? reinterpret_cast<const T*>(source.row(rows != nullptr ? rows[r] : r))[column]
             : T{};
}

/// out[e] (+)= sum of a[row]^T b[row]; block x: columns of b, y: columns of a, z: expert.
template <typename T, typename Out>
__global__ void __launch_bounds__(kTileThreads)
    weights_kernel(const __grid_constant__ WeightsArguments task) {
  __shared__ Stage<T> stage;
  begin_after_previous();
  const int thread = static_cast<int>(threadIdx.x);
  const int first_a = static_cast<int>(blockIdx.y) * kTile;
  const int first_b = static_cast<int>(blockIdx.x) * kTile;
  const int begin = task.offsets[blockIdx.z];
  const int end = task.offsets[blockIdx.z + 1];
  if (begin == end && task.accumulate) {
    return;
  }
  Sums<T> sums;
  for (int r0 = begin; r0 < end; r0 += kStep) {
    __syncthreads();
    for (int i = thread; i < kTile * kStep; i += kTileThreads) {
      const int r = r0 + i / kTile;
      const int c = i % kTile;
      stage.a[c][i / kTile] =
          r < end ? element<T>(task.a, task.a_rows, r, first_a + c, task.a_columns) : T{};
      stage.b[c][i / kTile] =
          r < end ? element<T>(task.b, task.b_rows, r, first_b + c, task.b_columns) : T{};
    }
    __syncthreads();
    sums.add(stage);
  }
  Out* const out =
      static_cast<Out*>(task.out) + std::int64_t{blockIdx.z} * task.a_columns * task.b_columns;
  sums.for_each([&](int a, int b, float sum) {
    if (first_a + a < task.a_columns && first_b + b < task.b_columns) {
      Out* const to = out + std::int64_t{first_a + a} * task.b_columns + first_b + b;
      from_float(to, task.accumulate ? to_float(*to) + sum : sum);
    }
  });
}

}  // namespace

void row_gradient_generic(const RowGradient& task, Stream stream) {
  const char* const what = "row gradient, generic kernel";
  const MatrixView& y = task.fused != nullptr ? task.fused->hidden : task.y;
  const RowsArguments arguments{task.x,
                                task.row_of,
                                task.offsets,
                                static_cast<int>(task.num_experts),
                                static_cast<int>(task.depth),
                                static_cast<int>(task.columns),
                                task.weights,
                                y.data,
                                y.row_stride};
  const dim3 grid(static_cast<unsigned>(divide_up(task.columns, kTile)),
                  static_cast<unsigned>(task.num_experts));
  with_type(task.type, [&](auto type) {
    using T = decltype(type);
    launch_overlapped(what, rows_kernel<T>, {grid, kTileThreads}, stream, arguments);
  });
  if (task.fused != nullptr) {
    activation_backward(task, stream);
  }
}

void weight_gradient_generic(const WeightGradient& task, Stream stream) {
  const WeightsArguments arguments{task.a,
                                   task.b,
                                   task.a_rows,
                                   task.b_rows,
                                   static_cast<int>(task.a_columns),
                                   static_cast<int>(task.b_columns),
                                   task.offsets,
                                   task.out.data,
                                   task.out.accumulate};
  const dim3 grid(static_cast<unsigned>(divide_up(task.b_columns, kTile)),
                  static_cast<unsigned>(divide_up(task.a_columns, kTile)),
                  static_cast<unsigned>(task.out.num_experts));
  with_type(task.type, [&](auto type) {
    using T = decltype(type);
    if (task.out.type == DType::kFloat32) {
      launch_overlapped("weight gradient, generic kernel", weights_kernel<T, float>,
                        {grid, kTileThreads}, stream, arguments);
    } else {
      launch_overlapped("weight gradient, generic kernel", weights_kernel<T, T>,
                        {grid, kTileThreads}, stream, arguments);
    }
  });
}

}  // namespace coterie::kernels::cuda
