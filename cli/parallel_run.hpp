// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "coterie/base/json.hpp"
#include "coterie/base/log.hpp"
#include "coterie/models/models.hpp"
#include "coterie/plan/placement/placement.hpp"
#include "coterie/run/comm/comm.hpp"
#include "coterie/run/exchange/exchange.hpp"

namespace coterie::cli {

using Sequences = std::vector<std::vector<std::int32_t>>;

struct ParallelRunOptions {
  std::filesystem::path model;
  placement::Placement placement;
  kernels::DType weight_type = kernels::DType::kFloat32;
  /// How rows travel between ranks. The one process that checks always uses per_device: the bits
  /// are the same.
  exchange::ExchangeForm form = exchange::ExchangeForm::kPerDevice;
  int num_threads = 1;
  std::int64_t batch = 8;  ///< sequences of all ranks together, a step
  bool check = true;       ///< compare with one process
};

/// A token that chose other experts in the parallel run than in one process.
struct RoutingFlip {
  std::int32_t layer = 0;
  std::int64_t sequence = 0;
  std::int64_t position = 0;
  std::vector<std::int32_t> one_process;  ///< experts chosen, ascending
  std::vector<std::int32_t> parallel;
  /// (weight of the best expert lost - weight of the worst one gained) / the former: 0 at a tie.
  double margin = 0;
  /// It follows an earlier flip of the same sequence, so its inputs were different ones.
  bool follows = false;
};

/// Logits of the parallel run beside those of one process.
struct LogitsCheck {
  bool same_placement_bit_equal = true;  ///< one process, given the same placement
  bool runs_bit_identical = true;        ///< the parallel run, done twice
  double max_abs_logit = 0;
  double max_difference = 0;               ///< to one process without a placement
  double max_difference_before_flips = 0;  ///< of these, tokens that no flip can have reached
  std::string digest;                      ///< of all logits in order of sequences
  std::vector<RoutingFlip> flips;
};

/// Bytes that crossed between ranks, and what routing and placement alone say.
struct TrafficCheck {
  static constexpr std::array<const char*, 3> kNames = {"metadata", "dispatch", "combine"};
  std::array<std::uint64_t, 3> sent{};
  std::array<std::uint64_t, 3> predicted{};
  bool equal_on_every_rank = true;
};

struct ParallelRunResult {
  int num_ranks = 1;
  std::string engine;
  std::int64_t num_sequences = 0;
  std::int64_t num_tokens = 0;
  double seconds = 0;             ///< of the second run of all steps
  double replicas_per_token = 0;  ///< devices a token and layer, measured
  TrafficCheck traffic;
  bool checked = false;
  LogitsCheck logits;
};

/// Largest |difference| to one process over the largest |logit| that fp32 may show.
inline constexpr double kLogitLimit = 5e-6;
/// A flip with a smaller margin is a near tie.
inline constexpr double kNearTie = 1e-4;

/// What does not hold, in words; nothing if all does.
std::vector<std::string> complaints(const ParallelRunResult& result, kernels::DType weight_type);

/// Computes all sequences with the experts spread over the ranks; sequence i of a step belongs to
/// rank i mod ranks. All ranks must call it with the same arguments. The result is whole on rank 0;
/// with `check`, rank 0 computes everything twice more by itself, with and without the placement.
ParallelRunResult run_parallel(const ParallelRunOptions& options, const Sequences& sequences,
                               comm::Communicator& communicator, Progress& progress);

}  // namespace coterie::cli
