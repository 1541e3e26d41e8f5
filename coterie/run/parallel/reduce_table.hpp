// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coterie/base/json_forward.hpp"
#include "coterie/run/parallel/layout.hpp"

namespace coterie::parallel {

/// What a parameter is, as far as its gradient over ranks goes.
enum class ParameterKind : std::uint8_t {
  /// The same on every rank of a stage, used on each rank's own tokens: norms, biases after a
  /// reduce-scatter, embeddings, head.
  kReplicated,
  /// As kReplicated, and held by the first and the last stage: a tied embedding.
  kTiedEmbedding,
  /// Cut over the model group (attention heads, width of a dense feed-forward part), used on all
  /// tokens of the data coordinate.
  kHeadShard,
  /// The weight of a gate: the same on every rank of a stage. Under ESP a device sees a shard of an
  /// expert's output only, so what it adds to dL/d(routing weight) is a partial sum over hidden
  /// shards; the way home adds them (reduce-scatter), and each token's gradient then counts on its
  /// home rank, once.
  kGate,
  /// Experts: cut by experts over the expert group and by width over the expert-shard group.
  kExpert,
  /// The output bias of an expert: under ESP every shard holds it, and one of them adds it.
  kExpertBias,
};

/// "replicated", "tied_embedding", "head_shard", "gate", "expert", "expert_bias".
const char* name_of(ParameterKind kind) noexcept;

/// The group over which a gradient is summed. The loss is divided by the global number of target
/// tokens before backward, so all sums are plain: the scale is 1 for every parameter.
GroupKind reduce_group(ParameterKind kind) noexcept;

/// One line: what happens to one parameter's gradient.
struct ReduceEntry {
  std::string parameter;  ///< global name
  ParameterKind kind = ParameterKind::kReplicated;
  GroupKind group = GroupKind::kStage;
  int group_size = 1;  ///< ranks that hold the same values after the sum; 1 / size counts each once
  double scale = 1.0;
  std::vector<std::int64_t> local_shape;

  bool operator==(const ReduceEntry&) const = default;
};

using ReduceTable = std::vector<ReduceEntry>;

/// The entry of a parameter of that kind, under that layout.
ReduceEntry reduce_entry(const std::string& parameter, ParameterKind kind,
                         std::vector<std::int64_t> local_shape, const Layout& layout);

/// For people: parameters that differ in their layer's number only share a line ("layers.{0..3}").
std::string format_table(const ReduceTable& table);
Json to_json(const ReduceTable& table);

}  // namespace coterie::parallel
