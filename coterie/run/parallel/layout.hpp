// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "coterie/base/json_forward.hpp"

namespace coterie::parallel {

/// How many ways a model and its data are spread. The world has pipeline * data * model ranks; the
/// data * model ranks of a pipeline stage also hold its experts: expert * expert_shard of them hold
/// one copy of all, and the rest is expert data parallelism (copies).
struct LayoutOptions {
  int data = 1;          ///< DP: copies of the dense parts, each with sequences of its own
  int model = 1;         ///< MP: attention heads and tokens of a sequence are spread
  int expert = 1;        ///< EP: experts are spread
  int expert_shard = 1;  ///< ESP: the width of each expert is spread
  int pipeline = 1;      ///< PP: layers are spread

  [[nodiscard]] int world_size() const { return pipeline * data * model; }
  bool operator==(const LayoutOptions&) const = default;
};

/// "data 2 x model 2, expert 2 x shard 2, pipeline 1": for people.
std::string format_options(const LayoutOptions& options);
Json to_json(const LayoutOptions& options);
/// Reads what to_json wrote; absent members are 1. kBadInput names the place and the value.
LayoutOptions layout_options_from_json(const Json& json, const std::string& source);

/// Where a rank stands along each axis; all count from 0.
struct Coordinates {
  int rank = 0;
  int pipeline = 0;      ///< stage
  int data = 0;          ///< which sequences
  int model = 0;         ///< which heads, which part of the tokens
  int expert_data = 0;   ///< which copy of the experts
  int expert = 0;        ///< which experts
  int expert_shard = 0;  ///< which part of their width

  bool operator==(const Coordinates&) const = default;
};

/// Sets of ranks that work together. Every rank is in exactly one group of each kind.
enum class GroupKind : std::uint8_t {
  kWorld,          ///< all
  kStage,          ///< one pipeline stage: data * model
  kData,           ///< same stage, same model coordinate: the copies of a shard of the dense parts
  kModel,          ///< same stage, same data coordinate: the shards of one copy
  kExpert,         ///< EP: same copy, same shard, all experts
  kExpertShard,    ///< ESP: the shards of the same experts of the same copy
  kExpertData,     ///< the copies of one shard of the same experts
  kExpertHolders,  ///< all who hold a part of the same experts: expert_shard * expert_data
  kPipeline,       ///< same place in each stage
  kEnds,           ///< first and last stage: who holds a tied embedding. In other stages: the stage
};
inline constexpr std::size_t kNumGroupKinds = 10;

/// "world", "stage", "data", "model", "expert", "expert_shard", "expert_data",
/// "expert_holders", "pipeline", "ends".
const char* name_of(GroupKind kind) noexcept;

/// The coordinates of every rank, by arithmetic alone: the same on every rank, without a message.
///
///     rank = (pipeline * data_size + data) * model_size + model
///     place in the stage = data * model_size + model
///                        = (expert_data * expert_size + expert) * shard_size + expert_shard
///
/// So neighbours in rank are MP and ESP neighbours (fast links), then EP, then DP, then PP
/// neighbours; with model = expert_shard = ranks of a node this is FSMoE's layout (section 2.1).
class Layout {
 public:
  Layout() : Layout(LayoutOptions{}) {}
  /// kBadInput if a size is below 1 or expert * expert_shard does not divide data * model; names
  /// sizes and values.
  explicit Layout(const LayoutOptions& options);

  [[nodiscard]] const LayoutOptions& options() const { return options_; }
  [[nodiscard]] int world_size() const { return options_.world_size(); }
  [[nodiscard]] int stage_size() const { return options_.data * options_.model; }
  /// Copies of the experts.
  [[nodiscard]] int expert_data() const {
    return stage_size() / (options_.expert * options_.expert_shard);
  }

  [[nodiscard]] Coordinates coordinates(int rank) const;
  [[nodiscard]] int size_of(GroupKind kind) const;
  /// The ranks of the group of that kind that `rank` is in, ascending. kEnds of a middle stage is
  /// its stage.
  [[nodiscard]] std::vector<int> members(GroupKind kind, int rank) const;
  /// A number below world_size() that two ranks share if and only if they share the group.
  [[nodiscard]] int group_of(GroupKind kind, int rank) const;

  /// The stage of each layer: consecutive layers, earlier stages get one more where they do not
  /// divide. kBadInput if there are fewer layers than stages.
  [[nodiscard]] std::vector<int> stage_of_layers(std::int64_t num_layers) const;

  /// Table of all ranks and groups, for people.
  [[nodiscard]] std::string table() const;
  /// Sizes, coordinates of all ranks, members of all groups.
  [[nodiscard]] Json to_json() const;

  bool operator==(const Layout&) const = default;

 private:
  LayoutOptions options_;
};

/// A half-open range of indices.
struct Share {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
  bool operator==(const Share&) const = default;
};

/// Part `index` of `count` things cut into `num_parts` consecutive parts, whose sizes differ by at
/// most one, larger ones first.
Share share_of(std::int64_t count, int num_parts, int index);

/// As share_of where parts must be equal; kBadInput "WHAT = count does not divide by AXIS =
/// num_parts" otherwise.
Share equal_share_of(std::int64_t count, int num_parts, int index, const std::string& what,
                     const std::string& axis);

}  // namespace coterie::parallel
