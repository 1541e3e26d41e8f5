// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstdint>

#include "coterie/run/kernels/reindex_blocks.cuh"

namespace coterie::kernels::cuda {
namespace {

/// Sum of the block's values before this thread's. Needs 32 integers of shared memory.
__device__ int block_prefix(int value, std::int32_t* warp_sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int sum = value;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(~0U, sum, d);
    sum += lane >= d ? other : 0;
  }
  if (lane == 31) {
    warp_sums[warp] = sum;
  }
  __syncthreads();
  int before = 0;
  for (int w = 0; w < warp; ++w) {
    before += warp_sums[w];
  }
  return before + sum - value;
}

/// All of it in one block with a thread a pair and a thread an expert.
__global__ void __launch_bounds__(kAlone) alone_kernel(const SortArguments task) {
  extern __shared__ std::int32_t memory[];
  std::int32_t* const warp_sums = memory;                                            // [32]
  std::int32_t* const offset = memory + 32;                                          // [E]
  auto* const counts = reinterpret_cast<unsigned char*>(offset + task.num_experts);  // [warps, E]
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int num_warps = (task.num_pairs + 31) / 32;  // that have pairs
  for (int i = thread; i < num_warps * task.num_experts; i += static_cast<int>(blockDim.x)) {
    counts[i] = 0;
  }
  begin_after_previous();
  const int e = judge(task, thread, thread < task.num_pairs ? task.ids[thread] : -1);
  const int own[1] = {e};
  unsigned match[1];
  match_experts(own, task, match);
  const unsigned equal = match[0];
  const int rank = __popc(equal & ((1U << thread % 32) - 1U));
  __syncthreads();
  if (e >= 0 && rank == 0) {
    counts[warp * task.num_experts + e] = static_cast<unsigned char>(__popc(equal));
  }
  __syncthreads();
  int total = 0;
  if (thread < task.num_experts) {
#pragma unroll 4
    for (int w = 0; w < num_warps; ++w) {
      total += counts[w * task.num_experts + thread];
    }
  }
  const int first = block_prefix(total, warp_sums);
  if (thread < task.num_experts) {
    offset[thread] = first;
    task.lists.expert_offsets[thread] = first;
    if (thread == task.num_experts - 1) {
      task.lists.expert_offsets[thread + 1] = first + total;
    }
  }
  __syncthreads();
  if (thread < task.num_pairs) {
    int row = -1;
    if (e >= 0) {
      row = offset[e] + rank;
#pragma unroll 4
      for (int w = 0; w < warp; ++w) {
        row += counts[w * task.num_experts + e];
      }
      task.lists.row_token[row] = thread / task.top_k;
    }
    task.lists.pos_of[thread] = row;
  }
}

void sort_alone(const SortArguments& task, Stream stream) {
  const std::int64_t threads = divide_up(std::max({task.num_pairs, task.num_experts, 1}), 32) * 32;
  const auto num_warps = static_cast<unsigned>(divide_up(task.num_pairs, 32));
  const auto num_experts = static_cast<unsigned>(task.num_experts);
  launch_overlapped(
      "build_reindex", alone_kernel,
      {1, static_cast<unsigned>(threads), (32U + num_experts) * 4U + num_warps * num_experts},
      stream, task);
}

void sort_in_blocks(const SortArguments& task, Stream stream) {
  const auto blocks = static_cast<unsigned>(divide_up(task.num_pairs, task.pairs_per_block));
  const auto row = static_cast<unsigned>(task.stride) * 4U;
  const bool staged = task.pairs_per_block <= kMaxStaged;
  const unsigned shared =
      16U + row * (3 + kWarps) + (staged ? static_cast<unsigned>(task.pairs_per_block) * 8U : 0U);
  launch_overlapped("build_reindex", count_kernel, {blocks, kThreads, row}, stream, task);
  if (staged) {
    allow_shared<place_kernel<true>>("build_reindex", shared);
    launch_overlapped("build_reindex", place_kernel<true>, {blocks, kThreads, shared}, stream,
                      task);
  } else {
    allow_shared<place_kernel<false>>("build_reindex", shared);
    launch_overlapped("build_reindex", place_kernel<false>, {blocks, kThreads, shared}, stream,
                      task);
  }
}

}  // namespace

std::size_t reindex_workspace_bytes(std::int64_t num_tokens, int top_k, int num_experts) {
  const std::int64_t num_pairs = num_tokens * top_k;
  const std::int64_t blocks =
      num_pairs <= kAlone ? 1 : divide_up(num_pairs, pairs_per_block(num_pairs));
  return static_cast<std::size_t>(blocks * divide_up(num_experts, 4) * 4) * sizeof(std::int32_t);
}

void build_reindex(const Reindex& task, Stream stream) {
  const char* const what = "build_reindex";
  require_between(what, "num_experts", task.num_experts, 1, kMaxExperts);
  require_between(what, "top_k", task.top_k, 1, kMaxTopK);
  require_between(what, "num_tokens", task.num_tokens, 0, (INT32_MAX - 65536) / task.top_k);
  require_pointer(what, "expert_offsets", task.lists.expert_offsets);
  const std::int64_t num_pairs = task.num_tokens * task.top_k;
  if (num_pairs > 0) {
    require_pointer(what, "ids", task.ids);
    require_pointer(what, "row_token", task.lists.row_token);
    require_pointer(what, "pos_of", task.lists.pos_of);
  }
  require_pointer(what, "workspace", task.workspace);
  require_aligned(what, "workspace", task.workspace, 0);
  const SortArguments arguments{
      task.ids,
      static_cast<int>(num_pairs),
      static_cast<int>(pairs_per_block(num_pairs)),
      task.top_k,
      task.num_experts,
      static_cast<int>(std::bit_width(static_cast<unsigned>(task.num_experts))),
      static_cast<std::int32_t*>(task.workspace),
      static_cast<int>(divide_up(task.num_experts, 4)) * 4,
      task.lists,
      task.faults};
  if (num_pairs <= kAlone) {
    sort_alone(arguments, stream);
  } else {
    sort_in_blocks(arguments, stream);
  }
}

}  // namespace coterie::kernels::cuda
