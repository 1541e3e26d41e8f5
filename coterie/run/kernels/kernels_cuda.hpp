// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "coterie/run/kernels/activation.hpp"
#include "coterie/run/kernels/tensor_view.hpp"

struct CUstream_st;

/// The operations of one MoE layer on a GPU. Part of the room's door; no CUDA header is needed to
/// include it. Without a CUDA compiler, `is_built()` is false and every operation throws
/// kUnsupported.
///
/// All pointers are device memory unless said otherwise. Every operation only queues work on
/// `stream`: none waits for the GPU, none allocates, so all can be captured in a CUDA graph. What
/// depends on routing (live rows, experts' segments) is read on the device. Results are
/// deterministic: no floating-point atomics, one order of summation along K whatever the batch.
/// Errors: kBadInput naming argument and value; kInternal naming the call that CUDA refused.
namespace coterie::kernels::cuda {

using Stream = CUstream_st*;

/// Whether this build has CUDA kernels.
bool is_built() noexcept;

/// What kernels found wrong with data, in device memory. Offenders cost nothing and add zero.
struct Faults {
  std::uint32_t num_bad_tokens = 0;             ///< tokens with NaN or +inf logits, or only -inf
  std::uint32_t num_bad_ids = 0;                ///< ids outside [-1, E), or twice in a row
  std::int64_t first_bad_token = 0x7FFFFFFFFF;  ///< lowest of them
  std::int64_t first_bad_id = 0x7FFFFFFFFF;     ///< token * 256 + slot of the lowest
  std::int32_t watchdog = 0;                    ///< a kernel gave up waiting (debug builds)
};

/// Writes an empty record.
void reset_faults(Faults* faults, Stream stream);

/// Waits for the stream and throws kBadInput if anything was found; `where` begins the message.
/// `ids` [T, top_k] (may be null) is where the offending value is read from.
void check_faults(const Faults* faults, const std::int32_t* ids, int top_k,
                  const std::string& where, Stream stream);

/// How scores of experts become weights.
enum class Scores : std::uint8_t {
  kSoftmax,  ///< softmax over all experts
  kSigmoid,  ///< each expert on its own
};

/// Top-k of router logits, ties to the lowest id. Twin of kernels::topk_gate.
struct TopkGate {
  const float* logits = nullptr;  ///< [T, E]
  std::int64_t num_tokens = 0;
  std::int64_t logits_stride = 0;  ///< elements between rows
  int num_experts = 0;             ///< up to 1024
  int top_k = 1;                   ///< up to 16
  Scores scores = Scores::kSoftmax;
  bool renormalise = false;
  std::int32_t* ids = nullptr;  ///< out [T, k], by descending logit; -1 throughout a bad token
  float* weights = nullptr;     ///< out [T, k], 0 where the id is -1
  Faults* faults = nullptr;     ///< may be null
};
void topk_gate(const TopkGate& task, Stream stream);

/// (token, expert) pairs sorted by expert, within an expert by token: where each pair stands, and
/// which token stands where.
struct ReindexLists {
  std::int32_t* expert_offsets = nullptr;  ///< out [E + 1]: rows of expert e
  std::int32_t* row_token = nullptr;       ///< out [R], R = offsets[E] <= T k: token of each row
  std::int32_t* pos_of = nullptr;          ///< out [T, k]: row of each pair, -1 if it has none
};
/// Bytes that build_reindex needs.
std::size_t reindex_workspace_bytes(std::int64_t num_tokens, int top_k, int num_experts);
/// Stable counting sort of ids [T, k] in [-1, num_experts) on the device. T * k < 2^31.
struct Reindex {
  const std::int32_t* ids = nullptr;
  std::int64_t num_tokens = 0;
  int top_k = 1;        ///< up to 16
  int num_experts = 0;  ///< up to 1024
  ReindexLists lists;
  void* workspace = nullptr;
  Faults* faults = nullptr;  ///< may be null
};
void build_reindex(const Reindex& task, Stream stream);

/// to[i] = from[index[i]] for i < num_rows; -1 gives zeros. Rows of any type whose `columns` fill
/// a multiple of 16 bytes.
struct GatherRows {
  ConstMatrixView from;
  const std::int32_t* index = nullptr;  ///< [rows of to]
  MatrixView to;
  std::span<const ConstMatrixView> more_from = {};  ///< rows numbered on after those of `from`, up
                                                    ///< to 15 matrices
};
void gather_rows(const GatherRows& task, Stream stream);

/// to[index[i]] = from[i]; -1 skips a row. Indices must differ; rows that no index names keep their
/// values. `to` may lie in another GPU's memory that is mapped here.
struct ScatterRows {
  ConstMatrixView from;
  const std::int32_t* index = nullptr;  ///< [rows of from], each in [-1, rows of to)
  MatrixView to;
};
void scatter_rows(const ScatterRows& task, Stream stream);

/// to[t] = sum over j of weights[t, j] * from[pos_of[t, j]] in fp32, from zero, in ascending row
/// number (that is, ascending expert), each term rounded before it is added: the bits of
/// kernels::merge_rows. -1 is skipped. from and to are bf16, fp16 or fp32.
struct MergeRows {
  ConstMatrixView from;
  const std::int32_t* pos_of = nullptr;  ///< [T, k]
  const float* weights = nullptr;        ///< [T, k]; null: all 1
  int top_k = 1;                         ///< up to 16
  MatrixView to;
};
void merge_rows(const MergeRows& task, Stream stream);

/// One weight matrix an expert, contiguous [E, rows, columns], as checkpoints hold them. `scale`
/// [E, rows / block_rows, columns / block_columns] is for block-scaled fp8 weights to come: today a
/// scale, or a type other than bf16, fp16 and fp32, is refused with kUnsupported.
struct ExpertWeights {
  const void* data = nullptr;
  std::int64_t num_experts = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  DType type = DType::kBfloat16;
  const float* scale = nullptr;
  int block_rows = 128;
  int block_columns = 128;
};

/// Which kernel computes grouped products.
enum class Path : std::uint8_t {
  kAutomatic,  ///< kHopper where it can: bf16, compute capability 9.0; else kGeneric
  kHopper,     ///< wgmma
  kGeneric,    ///< mma.sync (bf16, fp16) or plain multiply-adds (fp32); any GPU from sm_80
};

/// "auto", "hopper", "generic".
const char* name_of(Path path) noexcept;

/// The path of that name ("automatic" is "auto", too); kBadInput naming `source` otherwise.
Path parse_path(std::string_view name, const std::string& source);

/// Tiles of the Hopper kernel; they give the same bits.
enum class Tiles : std::uint8_t {
  kAutomatic,  ///< by the average number of rows an expert
  kWide,       ///< for many rows
  kNarrow,     ///< for fewer
  kFew,        ///< for a handful: weights and rows change sides in the tensor cores
};

/// How a grouped product runs.
struct ProductOptions {
  Path path = Path::kAutomatic;  ///< the two sum in other groups: bits differ between them
  Tiles tiles = Tiles::kAutomatic;
  unsigned* watchdog = nullptr;  ///< for builds with COTERIE_CUDA_WATCHDOG
};

/// hidden[r] = activation(gate_up_e x[row_token[r]] + bias_e) for each row r of expert e. P is 2I
/// for kSwiGlu, which takes no bias, else I.
struct GroupedUp {
  ConstMatrixView x;                             ///< [T, H], the type of the weights
  const std::int32_t* row_token = nullptr;       ///< [R], rows of x and more_x
  const std::int32_t* expert_offsets = nullptr;  ///< [E + 1]
  ExpertWeights gate_up;                         ///< [E, P, H]: gate rows, then up rows
  MatrixView hidden;                             ///< out [at least R, I], same type, any stride
  MatrixView pre = {};  ///< out unless data is null [at least R, P], same type: what the activation
                        ///< is given, which backward needs. hidden's bits do not depend on it
  Activation activation = Activation::kSwiGlu;
  const void* bias = nullptr;                    ///< [E, P], same type; null: none
  std::span<const ConstMatrixView> more_x = {};  ///< rows numbered on after those of x: the receive
                                                 ///< buffers of up to 15 peers, any stride each
};
void grouped_up(const GroupedUp& task, const ProductOptions& options, Stream stream);

/// What a path stands for on the current GPU, and why.
struct PathChoice {
  Path path = Path::kGeneric;  ///< kHopper or kGeneric
  std::string reason;          ///< "compute capability 9.0 and bf16 weights"

  bool operator==(const PathChoice&) const = default;
};
/// Decides for weights of that type. kAutomatic takes the environment variable COTERIE_GPU_KERNELS
/// (auto, hopper, generic) if it is set. kUnsupported if kHopper is asked for and cannot be.
PathChoice choose_path(Path path, DType type);
/// "generic kernels (compute capability 8.0)".
std::string to_string(const PathChoice& choice);
/// choose_path(...).path.
Path resolve_path(Path path, DType type);

/// rows[r] = down_e hidden[r] + bias_e for each row r of expert e.
struct GroupedDown {
  ConstMatrixView hidden;                        ///< [at least R, I], the type of the weights
  const std::int32_t* expert_offsets = nullptr;  ///< [E + 1]
  ExpertWeights down;                            ///< [E, H, I]
  MatrixView rows;  ///< out [at least R, H], same type or fp32, any stride; may lie in another
                    ///< GPU's memory that is mapped here
  const void* bias = nullptr;  ///< [E, H], the type of the weights; null: none
};
void grouped_down(const GroupedDown& task, const ProductOptions& options, Stream stream);

/// The whole expert layer: token rows, ids and weights to merged rows.
struct ExpertLayer {
  ConstMatrixView x;                  ///< [T, H], the type of the weights
  const std::int32_t* ids = nullptr;  ///< [T, k] in [-1, E)
  const float* weights = nullptr;     ///< [T, k]
  int top_k = 1;                      ///< up to E
  ExpertWeights gate_up;              ///< [E, P, H]
  ExpertWeights down;                 ///< [E, H, I], same type
  MatrixView y;                       ///< out [T, H], the type of the weights or fp32
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  Faults* faults = nullptr;  ///< may be null
  MatrixView pre = {};       ///< as in grouped_up
  Activation activation = Activation::kSwiGlu;
  const void* up_bias = nullptr;    ///< [E, P]; null: none
  const void* down_bias = nullptr;  ///< [E, H]; null: none
};
/// Bytes that expert_layer needs for weights of 16 bits (twice as many rows' bytes for fp32).
std::size_t expert_layer_workspace_bytes(std::int64_t num_tokens, int top_k, int num_experts,
                                         std::int64_t hidden, std::int64_t intermediate,
                                         DType type = DType::kBfloat16);
void expert_layer(const ExpertLayer& task, const ProductOptions& options, Stream stream);

}  // namespace coterie::kernels::cuda
