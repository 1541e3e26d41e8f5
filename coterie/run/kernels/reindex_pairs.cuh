// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coterie/run/kernels/checks_cuda.hpp"

/// Private to the room: what the sorts of (token, expert) pairs have in common.
namespace coterie::kernels::cuda {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kBatch = 8;  // pairs a lane has under way
constexpr std::int64_t kMaxBlocks = 128;
constexpr int kMaxStaged = 8192;       // pairs of a block whose tokens fit in shared memory
constexpr std::int64_t kAlone = 1024;  // pairs that one block sorts on its own

/// Pairs that one of up to 128 blocks sorts: a multiple of its threads.
inline std::int64_t pairs_per_block(std::int64_t num_pairs) {
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
__device__ inline void match_experts(const int (&expert)[kCount], const SortArguments& task,
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
__device__ inline bool is_repeated(const SortArguments& task, int pair, int slot, int id) {
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
__device__ inline int judge(const SortArguments& task, int pair, int id) {
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

}  // namespace coterie::kernels::cuda
