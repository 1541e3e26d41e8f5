// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "coterie/run/kernels/overlap.cuh"

namespace coterie::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr std::int64_t kMaxBlocks = 128;
constexpr std::int64_t kAlone = 512;

/// Pairs that one block sorts: a multiple of 256, so that at most 128 blocks are at work, and one
/// alone up to 512 pairs.
std::int64_t pairs_per_block(std::int64_t num_pairs) {
  const std::int64_t share = num_pairs <= kAlone ? num_pairs : divide_up(num_pairs, kMaxBlocks);
  return divide_up(share, kThreads) * kThreads;
}

struct SortArguments {
  const std::int32_t* ids;
  int num_pairs;
  int pairs_per_block;
  int top_k;
  int num_experts;
  std::int32_t* counts;  // [blocks, stride]
  int stride;            // E rounded up to a multiple of 4
  ReindexLists lists;
  Faults* faults;
};

/// The expert of a pair, -1 if it has none; bad ids are reported. Kept in pos_of until the pair's
/// place is known.
__device__ int judge(const SortArguments& task, int pair) {
  const int id = task.ids[pair];
  bool bad = id < -1 || id >= task.num_experts;
  const int slot = pair % task.top_k;
  for (int j = 1; j <= slot; ++j) {
    bad = bad || (task.ids[pair - j] == id && id >= 0);
  }
  if (bad && task.faults != nullptr) {
    atomicAdd(&task.faults->num_bad_ids, 1U);
    atomicMin(reinterpret_cast<long long*>(&task.faults->first_bad_id),
              static_cast<long long>(pair / task.top_k) * 256 + slot);
  }
  const int expert = bad ? -1 : id;
  task.lists.pos_of[pair] = expert;
  return expert;
}

/// counts[b, e] = pairs of block b that go to expert e.
__global__ void __launch_bounds__(kThreads) count_kernel(const SortArguments task) {
  begin_after_previous();
  extern __shared__ std::int32_t histogram[];
  for (int e = threadIdx.x; e < task.stride; e += kThreads) {
    histogram[e] = 0;
  }
  __syncthreads();
  const int first = blockIdx.x * task.pairs_per_block;
  const int last = min(first + task.pairs_per_block, task.num_pairs);
  for (int pair = first + threadIdx.x; pair < last; pair += kThreads) {
    const int e = judge(task, pair);
    if (e >= 0) {
      atomicAdd(&histogram[e], 1);
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < task.stride; e += kThreads) {
    task.counts[blockIdx.x * task.stride + e] = histogram[e];
  }
}

/// total[e] = pairs of expert e in all blocks, before[e] = in the blocks before this one.
__device__ void sum_counts(const SortArguments& task, std::int32_t* total, std::int32_t* before) {
  const int lanes = task.stride / 4;  // four experts each
  const int groups = kThreads / lanes;
  const int lane = threadIdx.x % lanes;
  for (int e = threadIdx.x; e < task.stride; e += kThreads) {
    total[e] = 0;
    before[e] = 0;
  }
  __syncthreads();
  int4 all{};
  int4 mine{};
  const int group = threadIdx.x / lanes;
#pragma unroll 8
  for (int b = group; b < static_cast<int>(gridDim.x) && group < groups; b += groups) {
    const int4 count = reinterpret_cast<const int4*>(task.counts)[b * lanes + lane];
    const int earlier = b < static_cast<int>(blockIdx.x) ? 1 : 0;
    all = {all.x + count.x, all.y + count.y, all.z + count.z, all.w + count.w};
    mine = {mine.x + earlier * count.x, mine.y + earlier * count.y, mine.z + earlier * count.z,
            mine.w + earlier * count.w};
  }
  if (group < groups) {
    atomicAdd(&total[4 * lane], all.x);
    atomicAdd(&total[4 * lane + 1], all.y);
    atomicAdd(&total[4 * lane + 2], all.z);
    atomicAdd(&total[4 * lane + 3], all.w);
    atomicAdd(&before[4 * lane], mine.x);
    atomicAdd(&before[4 * lane + 1], mine.y);
    atomicAdd(&before[4 * lane + 2], mine.z);
    atomicAdd(&before[4 * lane + 3], mine.w);
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
  begin_after_previous();
  extern __shared__ std::int32_t memory[];
  std::int32_t* const offset = memory;                // [stride]
  std::int32_t* const before = memory + task.stride;  // [stride]
  std::int32_t* const next = before + task.stride;    // [warps, E]
  const bool alone = gridDim.x == 1;                  // then nobody has counted
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
    const int e = alone ? judge(task, pair) : task.lists.pos_of[pair];
    if (e >= 0) {
      atomicAdd(&mine[e], 1);
    }
  }
  __syncthreads();
  if (alone) {
    for (int e = threadIdx.x; e < task.num_experts; e += kThreads) {
      offset[e] = 0;
      before[e] = 0;
      for (int w = 0; w < kWarps; ++w) {
        offset[e] += next[w * task.num_experts + e];
      }
    }
    __syncthreads();
  } else {
    sum_counts(task, offset, before);
  }
  if (threadIdx.x < 32) {
    const int num_rows = first_rows(task.num_experts, offset);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      task.lists.expert_offsets[task.num_experts] = num_rows;
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
    const int e = pair < last ? task.lists.pos_of[pair] : -1;
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
  const std::int64_t share = num_pairs == 0 ? kThreads : pairs_per_block(num_pairs);
  const auto blocks = static_cast<unsigned>(num_pairs == 0 ? 1 : divide_up(num_pairs, share));
  const SortArguments arguments{task.ids,
                                static_cast<int>(num_pairs),
                                static_cast<int>(share),
                                task.top_k,
                                task.num_experts,
                                static_cast<std::int32_t*>(task.workspace),
                                static_cast<int>(divide_up(task.num_experts, 4)) * 4,
                                task.lists,
                                task.faults};
  const auto row = static_cast<unsigned>(arguments.stride) * 4U;
  if (blocks > 1) {
    launch_overlapped(what, count_kernel, {blocks, kThreads, row}, stream, arguments);
  }
  launch_overlapped(what, place_kernel, {blocks, kThreads, row * (2 + kWarps)}, stream, arguments);
}

}  // namespace coterie::kernels::cuda
