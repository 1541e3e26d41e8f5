// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/run/kernels/overlap.cuh"
#include "coterie/run/kernels/reindex_pairs.cuh"

/// Private to the room: the counting sort of many pairs, in two kernels of up to 128 blocks.
namespace coterie::kernels::cuda {

/// counts[b, e] = pairs of block b that go to expert e. Pairs' experts wait in pos_of.
__global__ void __launch_bounds__(kThreads) count_kernel(const SortArguments task) {
  begin_after_previous();
  extern __shared__ std::int32_t histogram[];
  for (int e = threadIdx.x; e < task.stride; e += kThreads) {
    histogram[e] = 0;
  }
  __syncthreads();
  const int first = blockIdx.x * task.pairs_per_block;
  const int last = min(first + task.pairs_per_block, task.num_pairs);
  const int thread = static_cast<int>(threadIdx.x);
  for (int base = first + thread; base - thread < last; base += kBatch * kThreads) {
    int id[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      id[i] = base + i * kThreads < last ? task.ids[base + i * kThreads] : -1;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int pair = base + i * kThreads;
      if (pair - thread % 32 >= last) {
        break;  // the whole warp is past its pairs
      }
      const int e = judge(task, pair, id[i]);
      if (pair < last) {
        task.lists.pos_of[pair] = e;
        if (e >= 0) {
          atomicAdd(&histogram[e], 1);
        }
      }
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < task.stride; e += kThreads) {
    task.counts[blockIdx.x * task.stride + e] = histogram[e];
  }
}

/// total[e] = pairs of expert e in all blocks, before[e] = in the blocks before this one.
__device__ inline void sum_counts(const SortArguments& task, std::int32_t* total,
                                  std::int32_t* before) {
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
    const int4 count = __ldcg(reinterpret_cast<const int4*>(task.counts) + b * lanes + lane);
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
__device__ inline int first_rows(int num_experts, std::int32_t* total) {
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

/// Ranks the pairs of a warp's share among those of the same expert, in order: equal lanes are
/// found by matching, earlier ones are counted in mine[e]. pos_of keeps rank * 1024 + expert.
__device__ inline void rank_pairs(const SortArguments& task, int first, int last,
                                  std::int32_t* mine) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int base = first + lane; base - lane < last; base += kBatch * 32) {
    int expert[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int pair = base + 32 * i;
      expert[i] = pair < last ? __ldcg(task.lists.pos_of + pair) : -1;
    }
    unsigned equal[kBatch];
    match_experts(expert, task, equal);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int e = expert[i];
      const int rank = __popc(equal[i] & ((1U << lane) - 1U));
      const int earlier = e >= 0 ? mine[e] : 0;
      __syncwarp();
      if (e >= 0 && rank == 0) {
        mine[e] = earlier + __popc(equal[i]);
      }
      __syncwarp();
      if (e >= 0) {
        task.lists.pos_of[base + 32 * i] = (earlier + rank) << 10 | e;
      }
    }
  }
}

/// Shared memory of place_kernel.
struct PlaceMemory {
  std::int32_t* offset;  // [stride] first row of each expert
  std::int32_t* shift;   // [stride] from a place in the block's own order to a row
  std::int32_t* own;    // [stride] pairs of each expert in this block, then the first place of them
  std::int32_t* next;   // [warps, E] pairs of each warp's share, then the first place of them
  std::int32_t* token;  // [pairs of a block, if staged] in the block's own order
  std::int32_t* row;    // likewise
  std::int32_t* total;  // pairs of this block that have an expert

  __device__ PlaceMemory(std::int32_t* memory, const SortArguments& task)
      : offset(memory + 4),
        shift(offset + task.stride),
        own(shift + task.stride),
        next(own + task.stride),
        token(next + kWarps * task.num_experts),
        row(token + task.pairs_per_block),
        total(memory) {}
};

/// Turns counts into places: rows of experts in all, and of this block's warps in its own order.
__device__ inline void find_places(const SortArguments& task, const PlaceMemory& memory) {
  for (int e = threadIdx.x; e < task.num_experts; e += kThreads) {
    int count = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      count += memory.next[w * task.num_experts + e];
    }
    memory.own[e] = count;
  }
  sum_counts(task, memory.offset, memory.shift);
  if (threadIdx.x < 32) {
    const int num_rows = first_rows(task.num_experts, memory.offset);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      task.lists.expert_offsets[task.num_experts] = num_rows;
    }
  } else if (threadIdx.x < 64) {
    const int num_own = first_rows(task.num_experts, memory.own);
    if (threadIdx.x == 32) {
      *memory.total = num_own;
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < task.num_experts; e += kThreads) {
    if (blockIdx.x == 0) {
      task.lists.expert_offsets[e] = memory.offset[e];
    }
    int place = memory.own[e];
    memory.shift[e] += memory.offset[e] - place;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const int count = memory.next[w * task.num_experts + e];
      memory.next[w * task.num_experts + e] = place;
      place += count;
    }
  }
  __syncthreads();
}

/// Gives every pair its row: the rank within its warp's share plus the pairs of earlier warps and
/// blocks. Stable, hence deterministic. Staged, the block's tokens are put in order in shared
/// memory first, so that neighbours of one expert leave together: a lone word costs as much as a
/// line.
template <bool kStaged>
__global__ void __launch_bounds__(kThreads) place_kernel(const SortArguments task) {
  begin_after_previous();
  extern __shared__ std::int32_t words[];
  const PlaceMemory memory(words, task);
  for (int i = threadIdx.x; i < kWarps * task.num_experts; i += kThreads) {
    memory.next[i] = 0;
  }
  __syncthreads();
  const int warp = threadIdx.x / 32;
  const int share = task.pairs_per_block / kWarps;  // a multiple of 32
  const int first = blockIdx.x * task.pairs_per_block + warp * share;
  const int last = min(first + share, task.num_pairs);
  std::int32_t* const mine = memory.next + warp * task.num_experts;
  rank_pairs(task, first, last, mine);
  __syncthreads();
  find_places(task, memory);
#pragma unroll 8
  for (int pair = first + static_cast<int>(threadIdx.x) % 32; pair < last; pair += 32) {
    const int ranked = task.lists.pos_of[pair];
    if (ranked >= 0) {
      const int e = ranked & 1023;
      const int place = mine[e] + (ranked >> 10);
      const int row = place + memory.shift[e];
      task.lists.pos_of[pair] = row;
      if (kStaged) {
        memory.token[place] = pair / task.top_k;
        memory.row[place] = row;
      } else {
        task.lists.row_token[row] = pair / task.top_k;
      }
    }
  }
  if (kStaged) {
    __syncthreads();
    for (int i = threadIdx.x; i < *memory.total; i += kThreads) {
      task.lists.row_token[memory.row[i]] = memory.token[i];
    }
  }
}

}  // namespace coterie::kernels::cuda
