// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "coterie/base/log.hpp"
#include "coterie/run/comm/comm.hpp"
#include "coterie/training/adamw.hpp"
#include "coterie/training/metrics.hpp"
#include "coterie/training/model.hpp"
#include "coterie/training/recipe.hpp"
#include "coterie/training/training_data.hpp"

namespace coterie::training {

/// Where a run writes and when it stops.
struct RunOptions {
  std::filesystem::path out;     ///< gets recipe.json, metrics.jsonl, checkpoints/
  std::filesystem::path resume;  ///< a checkpoint to go on from; empty: from the beginning
  std::int64_t stop_after = 0;   ///< steps in all, after which it stops as if asked to; 0: never
  /// Asked once a step on every rank; true on any rank: the step is finished, a checkpoint written,
  /// and training ends. Later it can be resumed.
  std::function<bool()> should_stop;
  std::function<void(const StepMetrics&)> on_step;              ///< on rank 0
  std::function<void(const EvaluationMetrics&)> on_evaluation;  ///< on rank 0
};

struct RunResult {
  std::int64_t first_step = 0;                ///< steps done before
  std::int64_t last_step = 0;                 ///< steps done now
  bool is_complete = false;                   ///< all steps of the recipe are done
  StepMetrics last;                           ///< the last step
  std::optional<EvaluationMetrics> held_out;  ///< the last evaluation
  std::filesystem::path checkpoint;           ///< the last one
  double mean_tokens_per_s = 0;               ///< of this run's steps, the first left out
};

/// What a trainer works on, the same objects for the whole run.
struct Workplace {
  const Recipe& recipe;
  Model& model;
  TrainingData& data;
  comm::Communicator& world;
  DataShare share;  ///< this rank's data coordinate
  Progress& progress;
};

/// Trains by the recipe: for each step, forward and backward over the micro-batches, gradients
/// summed over replicas, clipped by their global norm, AdamW. Evaluates, writes checkpoints and
/// metrics as the recipe says. A run that is stopped and resumed at the same layout gives the bits
/// of one that never stopped. Collective over the world. Errors: kBadInput if the checkpoint's data
/// or model is not the recipe's, or if the loss is no longer a number (naming the step); kIo;
/// kPeer.
RunResult run_training(const Workplace& place, const RunOptions& options);

}  // namespace coterie::training
