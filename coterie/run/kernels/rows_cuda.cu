// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "coterie/run/kernels/overlap.cuh"
#include "coterie/run/kernels/row_source.cuh"

namespace coterie::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// Copies a row, 16 bytes a thread at a time; nullptr gives zeros.
__device__ void copy_row(char* to, const char* from, std::int64_t num_bytes) {
  for (std::int64_t byte = threadIdx.x * 16; byte < num_bytes; byte += kThreads * 16) {
    *reinterpret_cast<uint4*>(to + byte) =
        from == nullptr ? uint4{0, 0, 0, 0} : *reinterpret_cast<const uint4*>(from + byte);
  }
}

__global__ void __launch_bounds__(kThreads)
    gather_kernel(const RowSource from, const std::int32_t* index, const RowTarget to,
                  std::int64_t num_bytes) {
  begin_after_previous();
  const std::int64_t row = blockIdx.x;
  const std::int64_t source = index[row];
  copy_row(to.row<char>(row), source < 0 ? nullptr : from.row(source), num_bytes);
}

__global__ void __launch_bounds__(kThreads)
    scatter_kernel(const RowSource from, const std::int32_t* index, const RowTarget to,
                   std::int64_t num_bytes) {
  begin_after_previous();
  const std::int64_t row = blockIdx.x;
  const std::int64_t target = index[row];
  if (target >= 0) {
    copy_row(to.row<char>(target), from.row(row), num_bytes);
  }
}

/// Eight neighbouring elements as fp32.
template <typename T>
struct Eight;

template <>
struct Eight<__nv_bfloat16> {
  uint4 bits;
  __device__ static Eight load(const __nv_bfloat16* from) {
    return {__ldcs(reinterpret_cast<const uint4*>(from))};
  }
  __device__ float operator[](int i) const {
    const std::uint32_t word = i / 2 == 0   ? bits.x
                               : i / 2 == 1 ? bits.y
                               : i / 2 == 2 ? bits.z
                                            : bits.w;
    return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xFFFF0000U);
  }
};

template <>
struct Eight<__half> {
  uint4 bits;
  __device__ static Eight load(const __half* from) {
    return {__ldcs(reinterpret_cast<const uint4*>(from))};
  }
  __device__ float operator[](int i) const {
    const std::uint32_t word = i / 2 == 0   ? bits.x
                               : i / 2 == 1 ? bits.y
                               : i / 2 == 2 ? bits.z
                                            : bits.w;
    return __half2float(
        __ushort_as_half(static_cast<unsigned short>(i % 2 == 0 ? word & 0xFFFFU : word >> 16)));
  }
};

template <>
struct Eight<float> {
  float4 low;
  float4 high;
  __device__ static Eight load(const float* from) {
    return {__ldcs(reinterpret_cast<const float4*>(from)),
            __ldcs(reinterpret_cast<const float4*>(from) + 1)};
  }
  __device__ float operator[](int i) const {
    const float4 half = i < 4 ? low : high;
    return i % 4 == 0 ? half.x : i % 4 == 1 ? half.y : i % 4 == 2 ? half.z : half.w;
  }
};

__device__ void store_eight(__nv_bfloat16* to, const float (&v)[8]) {
  std::uint32_t word[4];
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
    word[i] = *reinterpret_cast<const std::uint32_t*>(&both);
  }
  *reinterpret_cast<uint4*>(to) = {word[0], word[1], word[2], word[3]};
}

__device__ void store_eight(__half* to, const float (&v)[8]) {
  std::uint32_t word[4];
  for (int i = 0; i < 4; ++i) {
    const __half2 both = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
    word[i] = *reinterpret_cast<const std::uint32_t*>(&both);
  }
  *reinterpret_cast<uint4*>(to) = {word[0], word[1], word[2], word[3]};
}

__device__ void store_eight(float* to, const float (&v)[8]) {
  reinterpret_cast<float4*>(to)[0] = {v[0], v[1], v[2], v[3]};
  reinterpret_cast<float4*>(to)[1] = {v[4], v[5], v[6], v[7]};
}

/// One block a token. kCount >= top_k rows are in flight at a time.
template <typename From, typename To, int kCount>
__global__ void __launch_bounds__(kThreads) merge_kernel(const MergeRows task) {
  __shared__ std::int32_t rows[kCount];
  __shared__ float weights[kCount];
  begin_after_previous();
  const std::int64_t token = blockIdx.x;
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    const std::int64_t pair = token * task.top_k + lane;
    const bool mine = lane < task.top_k;
    const int row = mine ? task.pos_of[pair] : -1;
    const float weight = mine && task.weights != nullptr ? task.weights[pair] : 1.0F;
    int rank = 0;  // among this token's rows, those without a row last
    for (int j = 0; j < kCount; ++j) {
      const int other = __shfl_sync(~0U, row, j);
      rank +=
          static_cast<unsigned>(other) < static_cast<unsigned>(row) || (other == row && j < lane);
    }
    if (lane < kCount) {
      rows[rank] = row;
      weights[rank] = weight;
    }
  }
  __syncthreads();
  const From* const from = static_cast<const From*>(task.from.data);
  To* const to = static_cast<To*>(task.to.data) + token * task.to.row_stride;
  for (std::int64_t c = threadIdx.x * 8; c < task.to.columns; c += kThreads * 8) {
    Eight<From> terms[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if (rows[j] >= 0) {
        terms[j] = Eight<From>::load(from + rows[j] * task.from.row_stride + c);
      }
    }
    float sum[8] = {};
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if (rows[j] >= 0) {
        for (int i = 0; i < 8; ++i) {
          sum[i] = __fadd_rn(sum[i], __fmul_rn(weights[j], terms[j][i]));
        }
      }
    }
    store_eight(to + c, sum);
  }
}

template <typename From, typename To>
void launch_merge(const MergeRows& task, Stream stream) {
  const char* const what = "merge_rows";
  const auto blocks = static_cast<unsigned>(task.to.rows);
  if (task.top_k <= 2) {
    launch_overlapped(what, merge_kernel<From, To, 2>, {blocks, kThreads}, stream, task);
  } else if (task.top_k <= 8) {
    launch_overlapped(what, merge_kernel<From, To, 8>, {blocks, kThreads}, stream, task);
  } else {
    launch_overlapped(what, merge_kernel<From, To, 16>, {blocks, kThreads}, stream, task);
  }
}

template <typename From>
void launch_merge_from(const MergeRows& task, Stream stream) {
  switch (task.to.type) {
    case DType::kFloat32: launch_merge<From, float>(task, stream); break;
    case DType::kFloat16: launch_merge<From, __half>(task, stream); break;
    default: launch_merge<From, __nv_bfloat16>(task, stream);
  }
}

/// kBadInput unless both hold rows of the same columns and type, a multiple of 16 bytes. Bytes a
/// row.
std::int64_t require_copyable(const char* what, const ConstMatrixView& from, const MatrixView& to) {
  require_between(what, "rows of to", to.rows, 0, INT32_MAX);
  const std::int64_t row_bytes = from.columns * size_of(from.type);
  COTERIE_REQUIRE(from.columns == to.columns && from.type == to.type, what, ": from has ",
                  from.columns, " columns, to has ", to.columns, " columns or another type");
  COTERIE_REQUIRE(row_bytes % 16 == 0, what, ": a row has ", row_bytes,
                  " bytes, not a multiple of 16");
  if (to.rows > 0) {
    require_pointer(what, "to", to.data);
    require_aligned(what, "to", to.data, to.row_stride * size_of(to.type));
  }
  return row_bytes;
}

}  // namespace

void gather_rows(const GatherRows& task, Stream stream) {
  const char* const what = "gather_rows";
  const std::int64_t row_bytes = require_copyable(what, task.from, task.to);
  const RowSource from = row_source(what, "from", task.from, task.more_from);
  if (task.to.rows == 0 || row_bytes == 0) {
    return;
  }
  require_pointer(what, "index", task.index);
  launch_overlapped(what, gather_kernel, {static_cast<unsigned>(task.to.rows), kThreads}, stream,
                    from, task.index, row_target(task.to), row_bytes);
}

void scatter_rows(const ScatterRows& task, Stream stream) {
  const char* const what = "scatter_rows";
  const std::int64_t row_bytes = require_copyable(what, task.from, task.to);
  const RowSource from = row_source(what, "from", task.from, {});
  if (task.from.rows == 0 || row_bytes == 0) {
    return;
  }
  require_pointer(what, "index", task.index);
  launch_overlapped(what, scatter_kernel, {static_cast<unsigned>(task.from.rows), kThreads}, stream,
                    from, task.index, row_target(task.to), row_bytes);
}

void merge_rows(const MergeRows& task, Stream stream) {
  const char* const what = "merge_rows";
  const auto sound = [&](const char* argument, const ConstMatrixView& view) {
    COTERIE_REQUIRE(view.type == DType::kFloat32 || view.type == DType::kBfloat16 ||
                        view.type == DType::kFloat16,
                    what, ": ", argument, " must be fp32, bf16 or fp16");
    require_aligned(what, argument, view.data, view.row_stride * size_of(view.type));
  };
  require_between(what, "top_k", task.top_k, 1, kMaxTopK);
  require_between(what, "rows of to", task.to.rows, 0, INT32_MAX);
  require_between(what, "rows of from", task.from.rows, 0, INT32_MAX);
  COTERIE_REQUIRE(task.from.columns == task.to.columns && task.to.columns % 8 == 0, what,
                  ": from has ", task.from.columns, " columns, to has ", task.to.columns,
                  "; both must be the same multiple of 8");
  if (task.to.rows == 0 || task.to.columns == 0) {
    return;
  }
  require_pointer(what, "pos_of", task.pos_of);
  require_pointer(what, "to", task.to.data);
  if (task.from.rows > 0) {
    require_pointer(what, "from", task.from.data);
  }
  sound("from", task.from);
  sound("to", task.to);
  switch (task.from.type) {
    case DType::kFloat32: launch_merge_from<float>(task, stream); break;
    case DType::kFloat16: launch_merge_from<__half>(task, stream); break;
    default: launch_merge_from<__nv_bfloat16>(task, stream);
  }
}

}  // namespace coterie::kernels::cuda
