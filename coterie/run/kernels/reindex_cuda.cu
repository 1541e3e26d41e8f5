// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "coterie/run/kernels/checks_cuda.hpp"

namespace coterie::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr std::int64_t kMaxBlocks = 128;

/// Pairs that one block sorts: a multiple of 256, so that at most 128 blocks are at work.
std::int64_t pairs_per_block(std::int64_t num_pairs) {
  return divide_up(divide_up(num_pairs, kMaxBlocks), kThreads) * kThreads;
}

struct SortArguments {
  const std::int32_t* ids;
  int num_pairs;
  int pairs_per_block;
  int top_k;
  int num_experts;
  std::int32_t* counts;  // [blocks, E]
  ReindexLists lists;
  Faults* faults;
};

/// The expert of a pair, -1 if it has none. A bad id is reported once, by the counting pass.
__device__ int expert_of(const SortArguments& task, int pair, bool report) {
  const int id = task.ids[pair];
  if (id == -1) {
    return -1;
  }
  bool bad = id < -1 || id >= task.num_experts;
  const int slot = pair % task.top_k;
  for (int j = 1; j <= slot; ++j) {
    bad = bad || task.ids[pair - j] == id;
  }
  if (bad && report && task.faults != nullptr) {
    atomicAdd(&task.faults->num_bad_ids, 1U);
    atomicMin(reinterpret_cast<long long*>(&task.faults->first_bad_id),
              static_cast<long long>(pair / task.top_k) * 256 + slot);
  }
  return bad ? -1 : id;
}

/// counts[b, e] = pairs of block b that go to expert e.
__global__ void __launch_bounds__(kThreads) count_kernel(const SortArguments task) {
  extern __shared__ std::int32_t histogram[];
  for (int e = threadIdx.x; e < task.num_experts; e += kThreads) {
    histogram[e] = 0;
  }
  __syncthreads();
  const int first = blockIdx.x * task.pairs_per_block;
  const int last = min(first + task.pairs_per_block, task.num_pairs);
  for (int pair = first + threadIdx.x; pair < last; pair += kThreads) {
    const int e = expert_of(task, pair, true);
    if (e >= 0) {
      atomicAdd(&histogram[e], 1);
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < task.num_experts; e += kThreads) {
    task.counts[blockIdx.x * task.num_experts + e] = histogram[e];
  }
}

/// total[e] = pairs of expert e in all blocks, before[e] = in the blocks before this one.
__device__ void sum_counts(const SortArguments& task, std::int32_t* total, std::int32_t* before) {
  // Thread groups take turns over the blocks, since E may be far below the number of threads.
  int width = 32;
  while (width < task.num_experts && width < kThreads) {
    width *= 2;
  }
  const int groups = kThreads / width;
  const int group = threadIdx.x / width;
  for (int e = threadIdx.x; e < task.num_experts; e += kThreads) {
    total[e] = 0;
    before[e] = 0;
  }
  __syncthreads();
  for (int e = threadIdx.x % width; e < task.num_experts; e += width) {
    int all = 0;
    int mine = 0;
#pragma unroll 8
    for (int b = group; b < static_cast<int>(gridDim.x); b += groups) {
      const int count = task.counts[b * task.num_experts + e];
      all += count;
      mine += b < static_cast<int>(blockIdx.x) ? count : 0;
    }
    atomicAdd(&total[e], all);
    atomicAdd(&before[e], mine);
  }
  __syncthreads();
}

/// Turns total[e] into the first row of expert e; one warp. Returns the number of rows.
__device__ int first_rows(int num_experts, std::int32_t* total) {
  const int lane = threadIdx.x % 32;
  int base = 0;
  for (int e0 = 0; e0 < num_experts; e0 += 32) {
    const int count = e0 + lane < num_experts ? total[e0 + lane] : 0;
    int sum = count;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0U, sum, d);
      sum += lane >= d ? other : 0;
    }
    if (e0 + lane < num_experts) {
      total[e0 + lane] = base + sum - count;
    }
    base += __shfl_sync(~0U, sum, 31);
  }
  return base;
}

/// Places every pair: its rank among equal experts is the number of earlier pairs in its warp's
/// share (found by matching lanes) plus those of earlier warps and blocks. Stable, hence
/// deterministic.
__global__ void __launch_bounds__(kThreads) place_kernel(const SortArguments task) {
  extern __shared__ std::int32_t memory[];
  std::int32_t* const offset = memory;                     // [E]
  std::int32_t* const before = memory + task.num_experts;  // [E]
  std::int32_t* const next = before + task.num_experts;    // [warps, E]
  sum_counts(task, offset, before);
  if (threadIdx.x < 32) {
    const int num_rows = first_rows(task.num_experts, offset);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      task.lists.expert_offsets[task.num_experts] = num_rows;
    }
  }
  for (int i = threadIdx.x; i < kWarps * task.num_experts; i += kThreads) {
    next[i] = 0;
  }
  __syncthreads();
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int share = task.pairs_per_block / kWarps;  // a multiple of 32
  const int first = blockIdx.x * task.pairs_per_block + warp * share;
  const int last = min(first + share, task.num_pairs);
  std::int32_t* const mine = next + warp * task.num_experts;
  for (int pair = first + lane; pair < last; pair += 32) {
    const int e = expert_of(task, pair, false);
    if (e >= 0) {
      atomicAdd(&mine[e], 1);
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < task.num_experts; e += kThreads) {
    int row = offset[e] + before[e];
    if (blockIdx.x == 0) {
      task.lists.expert_offsets[e] = offset[e];
    }
    for (int w = 0; w < kWarps; ++w) {
      const int count = next[w * task.num_experts + e];
      next[w * task.num_experts + e] = row;
      row += count;
    }
  }
  __syncthreads();
  for (int base = first; base < last; base += 32) {
    const int pair = base + lane;
    const int e = pair < last ? expert_of(task, pair, false) : -1;
    const unsigned equal = __match_any_sync(~0U, e);
    const int rank = __popc(equal & ((1U << lane) - 1U));
    const int row = e >= 0 ? mine[e] + rank : -1;
    __syncwarp();
    if (e >= 0 && rank == 0) {
      mine[e] += __popc(equal);
    }
    __syncwarp();
    if (pair < last) {
      task.lists.pos_of[pair] = row;
      if (e >= 0) {
        task.lists.row_token[row] = pair / task.top_k;
      }
    }
  }
}

}  // namespace

std::size_t reindex_workspace_bytes(std::int64_t num_tokens, int top_k, int num_experts) {
  const std::int64_t num_pairs = num_tokens * top_k;
  const std::int64_t blocks = num_pairs == 0 ? 1 : divide_up(num_pairs, pairs_per_block(num_pairs));
  return static_cast<std::size_t>(blocks * num_experts) * sizeof(std::int32_t);
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
  const std::int64_t share = num_pairs == 0 ? kThreads : pairs_per_block(num_pairs);
  const auto blocks = static_cast<unsigned>(num_pairs == 0 ? 1 : divide_up(num_pairs, share));
  const SortArguments arguments{task.ids,
                                static_cast<int>(num_pairs),
                                static_cast<int>(share),
                                task.top_k,
                                task.num_experts,
                                static_cast<std::int32_t*>(task.workspace),
                                task.lists,
                                task.faults};
  const auto row = static_cast<unsigned>(task.num_experts) * 4U;
  count_kernel<<<blocks, kThreads, row, stream>>>(arguments);
  require_launch("build_reindex: counting kernel");
  place_kernel<<<blocks, kThreads, row*(2 + kWarps), stream>>>(arguments);
  require_launch("build_reindex: placing kernel");
}

}  // namespace coterie::kernels::cuda
