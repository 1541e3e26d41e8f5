// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstdint>

#include "coterie/run/kernels/overlap.cuh"

namespace coterie::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kBatch = 8;  // pairs a lane has under way
constexpr std::int64_t kMaxBlocks = 128;
constexpr int kMaxStaged = 8192;       // pairs of a block whose tokens fit in shared memory
constexpr std::int64_t kAlone = 1024;  // pairs that one block sorts on its own

/// Pairs that one of up to 128 blocks sorts: a multiple of its threads.
std::int64_t pairs_per_block(std::int64_t num_pairs) {
  return divide_up(divide_up(num_pairs, kMaxBlocks), kThreads) * kThreads;
}

struct SortArguments {
  const std::int32_t* ids;
  int num_pairs;
  int pairs_per_block;
  int top_k;
  int num_experts;
  int id_bits;           // that hold 0 to E, E standing for none
  std::int32_t* counts;  // [blocks, stride]
  int stride;            // E rounded up to a multiple of 4
  ReindexLists lists;
  Faults* faults;
};

/// Which lanes of each of `kCount` rows of pairs have the same expert as this one. By one vote a
/// bit of the number: the matching instruction goes through different values one by one.
template <int kCount>
__device__ void match_experts(const int (&expert)[kCount], const SortArguments& task,
                              unsigned (&equal)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    equal[i] = ~0U;
  }
  for (int bit = 0; bit < task.id_bits; ++bit) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int key = expert[i] < 0 ? task.num_experts : expert[i];
      const bool one = (key >> bit & 1) != 0;
      const unsigned votes = __ballot_sync(~0U, one);
      equal[i] &= one ? votes : ~votes;
    }
  }
}

/// Whether an earlier slot of the pair's token has the same id. Whole warps call it, with 32
/// neighbouring pairs.
__device__ bool is_repeated(const SortArguments& task, int pair, int slot, int id) {
  bool repeated = false;
  if (32 % task.top_k == 0) {  // the warp holds whole tokens
    for (int j = 1; j < task.top_k; ++j) {
      repeated |= __shfl_up_sync(~0U, id, static_cast<unsigned>(j)) == id && j <= slot;
    }
    return repeated;
  }
#pragma unroll 8
  for (int j = 1; j < task.top_k; ++j) {
    const int other = min(max(pair - j, 0), task.num_pairs - 1);
    repeated |= task.ids[other] == id && j <= slot;
  }
  return repeated;
}

/// The expert of a pair, -1 if it has none or there is no such pair; bad ids are reported. Whole
/// warps call it, with 32 neighbouring pairs.
__device__ int judge(const SortArguments& task, int pair, int id) {
  const int slot = pair % task.top_k;
  const bool repeated = is_repeated(task, pair, slot, id);
  const bool bad = id < -1 || id >= task.num_experts || (repeated && id >= 0);
  if (bad && task.faults != nullptr) {
    atomicAdd(&task.faults->num_bad_ids, 1U);
    atomicMin(reinterpret_cast<long long*>(&task.faults->first_bad_id),
              static_cast<long long>(pair / task.top_k) * 256 + slot);
  }
  return bad ? -1 : id;
}

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

/// Ranks the pairs of a warp's share among those of the same expert, in order: equal lanes are
/// found by matching, earlier ones are counted in mine[e]. pos_of keeps rank * 1024 + expert.
__device__ void rank_pairs(const SortArguments& task, int first, int last, std::int32_t* mine) {
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
__device__ void find_places(const SortArguments& task, const PlaceMemory& memory) {
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
