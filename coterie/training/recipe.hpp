// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "coterie/base/json.hpp"
#include "coterie/run/gates/gates.hpp"
#include "coterie/training/adamw.hpp"
#include "coterie/training/data_order.hpp"
#include "coterie/training/learning_rate.hpp"
#include "coterie/training/token_streams.hpp"
#include "coterie/training/tune.hpp"

namespace coterie::training {

inline constexpr std::int64_t kRecipeVersion = 1;

/// Which text, cut how. Paths may begin with "{demo}", the folder of the bundled model and text;
/// others are relative to the recipe's file.
struct DataRecipe {
  std::string tokenizer;  ///< folder with tokenizer.json, copied into checkpoints
  std::string separator;  ///< token before each file's tokens; "": none
  OrderKind order = OrderKind::kShuffled;
  std::vector<TextSource> sources;
  std::vector<TextSource> held_out;  ///< for evaluation

  bool operator==(const DataRecipe&) const = default;
};

/// How many ranks do what; see coterie/run/parallel/layout.hpp.
struct LayoutRecipe {
  std::int64_t data = 1;
  std::int64_t model = 1;
  std::int64_t expert = 1;
  std::int64_t expert_shard = 1;
  std::int64_t pipeline = 1;

  [[nodiscard]] std::int64_t world_size() const { return pipeline * data * model; }
  bool operator==(const LayoutRecipe&) const = default;
};

/// Everything that a training run depends on, in one file. Reading is strict: an unknown key, a
/// wrong type or a value out of range is an error that names the key, and what is left out has a
/// default that --print-config shows.
struct Recipe {
  std::string name;
  std::string about;
  std::uint64_t seed = 0;  ///< of weights, data order and noise
  std::int64_t num_steps = 100;

  /// config.json of the model, with Hugging Face's keys; read by the models room.
  Json model = Json::object();
  std::string start_from;  ///< folder of a checkpoint whose weights are the start; "": random
  TuneRecipe tune;
  /// Of every MoE layer. Sizes, names and streams come from the model.
  gates::GateOptions gate;
  gates::OrderOptions order;

  std::string dtype = "fp32";  ///< of parameters: fp32, fp64, bf16 (with fp32 master weights)
  std::string device = "cpu";  ///< cpu, cuda (each rank's own GPU) or cuda:N
  bool recompute = false;
  bool reference = false;  ///< the slow path of the MoE layers: plain loops, one process
  std::int64_t forward_chunks = 1;
  std::int64_t backward_chunks = 1;
  LayoutRecipe layout;

  DataRecipe data;
  std::int64_t sequence_length = 256;
  std::int64_t batch_sequences = 16;       ///< a step, of all ranks together
  std::int64_t micro_batch_sequences = 4;  ///< a rank computes at once

  AdamWOptions optimizer;
  double clip_norm = 1;  ///< 0: off
  RateSchedule rate;

  std::int64_t evaluate_every = 100;  ///< steps; 0: never
  std::int64_t evaluation_sequences = 64;
  std::int64_t checkpoint_every = 100;  ///< steps; 0: only at the end
  std::int64_t keep_checkpoints = 2;    ///< 0: all
  double peak_gflops = 0;  ///< of one rank, for MFU; 0: measured by a matrix product at the start

  bool operator==(const Recipe&) const = default;
};

/// All values, those left out in the file included.
Json to_json(const Recipe& recipe);
/// kBadInput says file and key; kUnsupported for another version.
Recipe read_recipe(const Json& document, const std::string& source);

/// Applies "a.b.c=value" to the JSON of a recipe; the value is JSON or, failing that, text. Only
/// members that to_json writes can be set, and members of `model`, which may be new.
void set_value(Json& recipe, const std::string& assignment);

/// Names of the bundled recipes, in the order in which a newcomer meets them.
std::vector<std::string> bundled_recipes();
/// Its text; kBadInput, listing the names, if there is none.
std::string bundled_recipe(const std::string& name);

}  // namespace coterie::training
