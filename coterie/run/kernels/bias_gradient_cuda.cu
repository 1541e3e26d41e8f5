// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "coterie/run/kernels/backward_cuda.hpp"
#include "coterie/run/kernels/mma.cuh"
#include "coterie/run/kernels/overlap.cuh"

/// What biases add to backward: their gradients, and their part in the routing weights' gradient.
namespace coterie::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kAhead = 8;  // rows under way in a thread

/// 4 bytes of a row: one or two elements.
template <typename T>
struct Word;
template <>
struct Word<float> {
  static constexpr int kElements = 1;
  static __device__ float element(std::uint32_t word, int /*i*/) { return __uint_as_float(word); }
};
template <>
struct Word<__nv_bfloat16> {
  static constexpr int kElements = 2;
  static __device__ float element(std::uint32_t word, int i) {
    return __uint_as_float(i == 0 ? word << 16 : word & 0xFFFF0000U);
  }
};
template <>
struct Word<__half> {
  static constexpr int kElements = 2;
  static __device__ float element(std::uint32_t word, int i) {
    const __half2 both = *reinterpret_cast<const __half2*>(&word);
    return __half2float(i == 0 ? __low2half(both) : __high2half(both));
  }
};

struct BiasArguments {
  RowSource a;
  const std::int32_t* a_rows;
  const float* weights;
  const std::int32_t* offsets;
  int columns;
  void* out;
  bool accumulate;
};

/// out[e] (+)= sum of weights[r] a[a_rows[r]]: one chain of additions a column, in ascending r,
/// each term rounded first. Block x: columns, y: expert.
template <typename T, typename Out>
__global__ void __launch_bounds__(kThreads)
    bias_gradient_kernel(const __grid_constant__ BiasArguments task) {
  begin_after_previous();
  constexpr int kElements = Word<T>::kElements;
  const int column = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * kElements;
  const int begin = task.offsets[blockIdx.y];
  const int end = task.offsets[blockIdx.y + 1];
  if (column >= task.columns || (begin == end && task.accumulate)) {
    return;
  }
  Out* const out = static_cast<Out*>(task.out) + std::int64_t{blockIdx.y} * task.columns + column;
  float sums[kElements];
  for (int i = 0; i < kElements; ++i) {
    sums[i] = task.accumulate ? to_float(out[i]) : 0.0F;
  }
  for (int first = begin; first < end; first += kAhead) {
    std::uint32_t words[kAhead];
    float weights[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int r = min(first + j, end - 1);
      const std::int64_t row = task.a_rows != nullptr ? task.a_rows[r] : r;
      words[j] = *reinterpret_cast<const std::uint32_t*>(task.a.row(row) + column * sizeof(T));
      weights[j] = task.weights != nullptr ? task.weights[r] : 1.0F;
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      for (int i = 0; i < kElements && first + j < end; ++i) {
        sums[i] = __fadd_rn(sums[i], __fmul_rn(weights[j], Word<T>::element(words[j], i)));
      }
    }
  }
  for (int i = 0; i < kElements; ++i) {
    from_float(out + i, sums[i]);
  }
}

struct BiasDotArguments {
  RowSource x;
  const std::int32_t* row_of;
  const std::int32_t* offsets;
  int num_experts;
  int columns;
  const void* bias;
  float* dots;
};

/// dots[r] = x[row_of[r]] . bias[expert of r]; a warp a row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    bias_dot_kernel(const __grid_constant__ BiasDotArguments task) {
  begin_after_previous();
  constexpr int kElements = Word<T>::kElements;
  const std::int64_t r = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (r >= task.offsets[task.num_experts]) {
    return;
  }
  int low = 0;  // the last expert whose segment begins at r or before, and is not empty
  for (int high = task.num_experts; high - low > 1;) {
    const int middle = (low + high) / 2;
    (task.offsets[middle] <= r ? low : high) = middle;
  }
  const char* const x = task.x.row(task.row_of != nullptr ? task.row_of[r] : r);
  const T* const bias = static_cast<const T*>(task.bias) + std::int64_t{low} * task.columns;
  float sum = 0.0F;
  for (int c = static_cast<int>(threadIdx.x % 32) * kElements; c < task.columns;
       c += 32 * kElements) {
    const std::uint32_t a = *reinterpret_cast<const std::uint32_t*>(x + c * sizeof(T));
    const std::uint32_t b = *reinterpret_cast<const std::uint32_t*>(bias + c);
    for (int i = 0; i < kElements; ++i) {
      sum += Word<T>::element(a, i) * Word<T>::element(b, i);
    }
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(~0U, sum, distance);
  }
  if (threadIdx.x % 32 == 0) {
    task.dots[r] = sum;
  }
}

}  // namespace

void bias_gradient(const WeightGradient& task, const float* row_weights, Stream stream) {
  const BiasArguments arguments{task.a,
                                task.a_rows,
                                row_weights,
                                task.offsets,
                                static_cast<int>(task.a_columns),
                                task.out.data,
                                task.out.accumulate};
  const std::int64_t words = task.a_columns * size_of(task.type) / 4;
  const dim3 grid(static_cast<unsigned>(divide_up(words, kThreads)),
                  static_cast<unsigned>(task.out.num_experts));
  with_type(task.type, [&](auto type) {
    using T = decltype(type);
    const LaunchShape shape{grid, kThreads};
    if (task.out.type == DType::kFloat32) {
      launch_overlapped("bias gradient", bias_gradient_kernel<T, float>, shape, stream, arguments);
    } else {
      launch_overlapped("bias gradient", bias_gradient_kernel<T, T>, shape, stream, arguments);
    }
  });
}

void bias_dots(const RowGradient& task, const void* bias, float* dots, Stream stream) {
  const BiasDotArguments arguments{task.x,
                                   task.row_of,
                                   task.offsets,
                                   static_cast<int>(task.num_experts),
                                   static_cast<int>(task.depth),
                                   bias,
                                   dots};
  const LaunchShape shape{static_cast<unsigned>(divide_up(task.max_rows, kThreads / 32)), kThreads};
  with_type(task.type, [&](auto type) {
    launch_overlapped("routing weights of biases", bias_dot_kernel<decltype(type)>, shape, stream,
                      arguments);
  });
}

}  // namespace coterie::kernels::cuda
