// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "coterie/run/kernels/activation_backward.cuh"
#include "coterie/run/kernels/backward_cuda.hpp"
#include "coterie/run/kernels/overlap.cuh"

/// Backward products on any GPU from compute capability 8.0: mma.sync for bf16 and fp16, plain
/// multiply-adds for fp32. One simple tile for all of them: 64 x 64, operands turned on their way
/// into shared memory so that K lies inside. Sums run along K in one order; bits differ from the
/// Hopper kernels', whose groups are others.
namespace coterie::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 64;
constexpr int kStep = 32;          // elements of K a step
constexpr int kPitch = kStep + 8;  // elements; keeps ldmatrix free of conflicts

__device__ float to_float(float v) {
  return v;
}
__device__ float to_float(__nv_bfloat16 v) {
  return __bfloat162float(v);
}
__device__ float to_float(__half v) {
  return __half2float(v);
}
__device__ void from_float(float* to, float v) {
  *to = v;
}
__device__ void from_float(__nv_bfloat16* to, float v) {
  *to = __float2bfloat16_rn(v);
}
__device__ void from_float(__half* to, float v) {
  *to = __float2half_rn(v);
}

__device__ void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                         std::uint32_t b1, __nv_bfloat16 /*type*/) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7},"
      " {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                         std::uint32_t b1, __half /*type*/) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7},"
      " {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Both operands of a step, K inside.
template <typename T>
struct Stage {
  T a[kTile][kPitch];
  T b[kTile][kPitch];
};

/// Sums of one thread. 16-bit types: warp w has rows 16 (w % 4) ff., columns 32 (w / 4) ff., four
/// fragments of 8 columns. fp32: row thread / 4, columns thread % 4 + 4 j.
template <typename T>
struct Sums {
  float d[4][4] = {};

  __device__ void add(const Stage<T>& stage) {
    const int thread = static_cast<int>(threadIdx.x);
    if constexpr (std::is_same_v<T, float>) {
      for (int k = 0; k < kStep; ++k) {
        const float a = stage.a[thread / 4][k];
        for (int j = 0; j < 16; ++j) {
          d[j / 4][j % 4] += a * stage.b[thread % 4 + 4 * j][k];
        }
      }
    } else {
      const int lane = thread % 32;
      const int row = thread / 32 % 4 * 16 + lane / 4;
      const int column = thread / 128 * 32 + lane / 4;
      const auto two = [](const T* from) { return *reinterpret_cast<const std::uint32_t*>(from); };
      for (int k = lane % 4 * 2; k < kStep; k += 16) {
        const std::uint32_t a[4] = {two(&stage.a[row][k]), two(&stage.a[row + 8][k]),
                                    two(&stage.a[row][k + 8]), two(&stage.a[row + 8][k + 8])};
        for (int j = 0; j < 4; ++j) {
          multiply(d[j], a, two(&stage.b[column + 8 * j][k]), two(&stage.b[column + 8 * j][k + 8]),
                   T{});
        }
      }
    }
  }

  /// Calls put(row, column, sum) for each.
  template <typename Put>
  __device__ void for_each(const Put& put) const {
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = 0; i < 16; ++i) {
      if constexpr (std::is_same_v<T, float>) {
        put(thread / 4, thread % 4 + 4 * i, d[i / 4][i % 4]);
      } else {
        const int lane = thread % 32;
        put(thread / 32 % 4 * 16 + lane / 4 + i / 2 % 2 * 8,
            thread / 128 * 32 + i / 4 * 8 + lane % 4 * 2 + i % 2, d[i / 4][i % 4]);
      }
    }
  }
};

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
__global__ void __launch_bounds__(kThreads)
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
      for (int i = thread; i < kTile * kStep; i += kThreads) {
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
__global__ void __launch_bounds__(kThreads)
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
    for (int i = thread; i < kTile * kStep; i += kThreads) {
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

struct ActivationArguments {
  const void* pre;
  std::int64_t pre_stride;
  void* grad_pre;
  std::int64_t grad_pre_stride;
  void* hidden;  // in: dL/d(hidden) before the row's weight; out: hidden times weight
  std::int64_t hidden_stride;
  const float* row_weights;
  float* dots;
  std::int64_t dots_stride;
  const std::int32_t* num_rows;
  int columns;
  Activation activation;
};

/// The activation's backward; one block a row and part of 256 columns.
template <typename T>
__global__ void __launch_bounds__(kThreads) activation_kernel(const ActivationArguments task) {
  __shared__ float parts[kThreads / 32];
  begin_after_previous();
  const std::int64_t row = blockIdx.x;
  if (row >= *task.num_rows) {
    return;
  }
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  const float weight = task.row_weights != nullptr ? task.row_weights[row] : 1.0F;
  float dot = 0.0F;
  if (column < task.columns) {
    const T* const pre = static_cast<const T*>(task.pre) + row * task.pre_stride + column;
    T* const grad_pre = static_cast<T*>(task.grad_pre) + row * task.grad_pre_stride + column;
    T* const hidden = static_cast<T*>(task.hidden) + row * task.hidden_stride + column;
    const float value = to_float(*hidden);
    if (task.activation == Activation::kSwiGlu) {
      const SwiGluGradient g = swiglu_backward(to_float(pre[0]), to_float(pre[task.columns]));
      dot = value * g.hidden;
      from_float(grad_pre, value * weight * g.by_gate);
      from_float(grad_pre + task.columns, value * weight * g.by_up);
      from_float(hidden, g.hidden * weight);
    } else {
      const GeluGradient g = gelu_backward(to_float(pre[0]), task.activation);
      dot = value * g.hidden;
      from_float(grad_pre, value * weight * g.by_pre);
      from_float(hidden, g.hidden * weight);
    }
  }
  if (task.dots == nullptr) {
    return;
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    dot += __shfl_xor_sync(~0U, dot, distance);
  }
  if (threadIdx.x % 32 == 0) {
    parts[threadIdx.x / 32] = dot;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0.0F;
    for (const float part : parts) {
      sum += part;
    }
    task.dots[blockIdx.y * task.dots_stride + row] = sum;
  }
}

template <typename Call>
void with_type(DType type, const Call& call) {
  switch (type) {
    case DType::kFloat32: call(float{}); break;
    case DType::kFloat16: call(__half{}); break;
    default: call(__nv_bfloat16{});
  }
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
    launch_overlapped(what, rows_kernel<T>, {grid, kThreads}, stream, arguments);
  });
  if (task.fused == nullptr) {
    return;
  }
  const GroupedDownBackward& fused = *task.fused;
  const ActivationArguments activation{fused.pre.data,
                                       fused.pre.row_stride,
                                       fused.grad_pre.data,
                                       fused.grad_pre.row_stride,
                                       fused.hidden.data,
                                       fused.hidden.row_stride,
                                       fused.row_weights,
                                       fused.row_dots,
                                       fused.row_dots_stride,
                                       task.offsets + task.num_experts,
                                       static_cast<int>(task.columns),
                                       fused.activation};
  const dim3 rows(static_cast<unsigned>(task.max_rows),
                  static_cast<unsigned>(divide_up(task.columns, kThreads)));
  with_type(task.type, [&](auto type) {
    using T = decltype(type);
    launch_overlapped(what, activation_kernel<T>, {rows, kThreads}, stream, activation);
  });
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
                        {grid, kThreads}, stream, arguments);
    } else {
      launch_overlapped("weight gradient, generic kernel", weights_kernel<T, T>, {grid, kThreads},
                        stream, arguments);
    }
  });
}

}  // namespace coterie::kernels::cuda
