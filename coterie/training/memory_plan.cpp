// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/memory_plan.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "coterie/base/json.hpp"
#include "coterie/training/decoder_model.hpp"
#include "coterie/training/machine.hpp"

namespace coterie::training {
namespace {

constexpr std::int64_t kLibraries = std::int64_t{40} << 20U;
/// Of a rank among several: MPI with its shared memory, and buffers of the exchange (measured).
constexpr std::int64_t kGroup = std::int64_t{64} << 20U;
constexpr std::int64_t kLossChunk = 1024;  ///< as models::TrainableOptions has it

/// Parameters of one rank of a stage, counted.
struct Counts {
  std::int64_t replicated = 0;  ///< the same on every rank of the stage
  std::int64_t head_shard = 0;  ///< cut over the model group
  std::int64_t expert = 0;      ///< cut over experts and their width
  [[nodiscard]] std::int64_t total() const { return replicated + head_shard + expert; }
};

/// What a layer has beside its matrices: norms, and GPT-2's biases.
void count_vectors(const models::TrainableConfig& config, const LayoutRecipe& layout, bool is_moe,
                   Counts& counts) {
  const models::ModelConfig& m = config.model;
  counts.replicated += 2 * m.hidden_size;
  if (m.qk_norm == models::QkNorm::kWholeProjection) {
    counts.head_shard += (m.num_heads + m.num_kv_heads) * m.head_dim / layout.model;
  } else if (m.qk_norm == models::QkNorm::kEachHead) {
    counts.replicated += 2 * m.head_dim;
  }
  if (!config.is_gpt2()) {
    return;
  }
  counts.replicated += 3 * m.hidden_size;  // of both norms and of attention's output
  counts.head_shard += 3 * m.hidden_size / layout.model;
  if (is_moe) {
    counts.expert += m.num_experts / layout.expert *
                     (m.expert_intermediate_size / layout.expert_shard + m.hidden_size);
  } else {
    counts.head_shard += config.dense_intermediate_size / layout.model;
    counts.replicated += m.hidden_size;
  }
}

Counts count_stage(const models::TrainableConfig& config, const Recipe& recipe, int stage) {
  const models::ModelConfig& m = config.model;
  const LayoutRecipe& layout = recipe.layout;
  const std::vector<int> stages = layout_of(recipe).stage_of_layers(m.num_layers);
  const std::int64_t matrices = config.is_gpt2() ? 2 : 3;
  Counts counts;
  for (std::int64_t layer = 0; layer < m.num_layers; ++layer) {
    if (stages[static_cast<std::size_t>(layer)] != stage) {
      continue;
    }
    counts.head_shard +=
        m.hidden_size * m.head_dim * (2 * m.num_heads + 2 * m.num_kv_heads) / layout.model;
    if (config.is_moe_layer(layer)) {
      counts.replicated += m.num_experts * m.hidden_size;
      counts.expert += m.num_experts / layout.expert * matrices * m.hidden_size *
                       m.expert_intermediate_size / layout.expert_shard;
    } else {
      counts.head_shard += matrices * m.hidden_size * config.dense_intermediate_size / layout.model;
    }
    count_vectors(config, layout, config.is_moe_layer(layer), counts);
  }
  const bool is_first = stage == 0;
  const bool is_last = stage + 1 == layout.pipeline;
  const std::int64_t matrix = m.vocab_size * m.hidden_size;
  const std::int64_t vectors = config.is_gpt2() ? 2 : 1;
  counts.replicated += is_first ? matrix : 0;
  counts.replicated += is_first && config.is_gpt2() ? m.max_positions * m.hidden_size : 0;
  counts.replicated += is_last ? vectors * m.hidden_size : 0;
  counts.replicated += is_last && (!m.tied_head || !is_first) ? matrix : 0;
  return counts;
}

std::int64_t layers_of_stage(const models::TrainableConfig& config, const Recipe& recipe,
                             int stage) {
  return std::ranges::count(layout_of(recipe).stage_of_layers(config.model.num_layers), stage);
}

std::int64_t element_bytes(const Recipe& recipe) {
  return recipe.dtype == "fp64" ? 8 : recipe.dtype == "bf16" ? 2 : 4;
}

std::int64_t optimizer_bytes(const Counts& counts, const Recipe& recipe) {
  const std::int64_t each = recipe.dtype == "fp64" ? 16 : recipe.dtype == "bf16" ? 12 : 8;
  const LayoutRecipe& layout = recipe.layout;
  const std::int64_t stage_size = layout.data * layout.model;
  const bool sharded = recipe.optimizer.shard_state;
  return each * (counts.replicated / (sharded ? stage_size : 1) +
                 counts.head_shard / (sharded ? layout.data : 1) + counts.expert);
}

/// What autograd keeps of one layer for one token of this rank, in elements.
std::int64_t kept_elements(const models::TrainableConfig& config, const Recipe& recipe) {
  const models::ModelConfig& m = config.model;
  const std::int64_t heads = m.num_heads * m.head_dim / recipe.layout.model;
  const std::int64_t kv_heads = m.num_kv_heads * m.head_dim / recipe.layout.model;
  const std::int64_t up = config.is_gpt2() ? 1 : 2;
  const std::int64_t expert_width =
      m.top_k * up * m.expert_intermediate_size / recipe.layout.expert_shard;
  return 6 * m.hidden_size + 4 * heads + 4 * kv_heads + expert_width + 4 * m.num_experts;
}

}  // namespace

std::int64_t MemoryPlan::total() const {
  std::int64_t sum = 0;
  for (const MemoryItem& item : items) {
    sum += item.num_bytes;
  }
  return sum;
}

MemoryPlan plan_memory(const Recipe& recipe, std::int64_t data_bytes) {
  const models::TrainableConfig config = config_of(recipe);
  const models::ModelConfig& m = config.model;
  const LayoutRecipe& layout = recipe.layout;
  const std::int64_t element = element_bytes(recipe);
  MemoryPlan largest;
  for (int stage = 0; stage < static_cast<int>(layout.pipeline); ++stage) {
    const Counts counts = count_stage(config, recipe, stage);
    const std::int64_t layers = layers_of_stage(config, recipe, stage);
    const std::int64_t sequences = std::min(
        recipe.micro_batch_sequences, (recipe.batch_sequences + layout.data - 1) / layout.data);
    const std::int64_t tokens = sequences * recipe.sequence_length / layout.model;
    // GPipe keeps every micro-batch's activations until the backward phase.
    const std::int64_t in_flight =
        layout.pipeline == 1
            ? 1
            : (recipe.batch_sequences + layout.data * sequences - 1) / (layout.data * sequences);
    const std::int64_t kept = recipe.recompute ? m.hidden_size : kept_elements(config, recipe);
    const std::int64_t up = config.is_gpt2() ? 1 : 2;
    const std::int64_t rows = tokens * m.top_k;
    const std::int64_t working =
        rows * (2 * m.hidden_size + (up + 1) * m.expert_intermediate_size / layout.expert_shard) +
        (recipe.recompute ? tokens * kept_elements(config, recipe) : 0);
    const std::int64_t activations = in_flight * layers * tokens * kept * element;
    const std::int64_t logits =
        std::min(kLossChunk, tokens) * m.vocab_size * 3 * std::max<std::int64_t>(element, 4);
    const std::int64_t stack = m.num_experts / layout.expert * up * m.hidden_size *
                               m.expert_intermediate_size / layout.expert_shard;
    const std::int64_t largest_parameter = std::max(m.vocab_size * m.hidden_size, stack);
    const std::int64_t coming_and_going = activations + 2 * working * element + logits;
    MemoryPlan plan;
    plan.world_size = layout.world_size();
    plan.items = {
        {"process", resident_memory_bytes() + kLibraries,
         "this program now, and 40 MiB that libraries take at first use"},
        {"group", layout.world_size() > 1 ? kGroup : 0,
         "64 MiB of MPI and exchange, if ranks are several"},
        {"data", data_bytes, "4 bytes a token of all sources"},
        {"parameters", counts.total() * element, "elements of this rank"},
        {"gradients", counts.total() * element, "as parameters"},
        {"optimizer", optimizer_bytes(counts, recipe),
         "two moments (and bf16's masters); dense ones over the replicas"},
        {"beginning", 2 * 8 * largest_parameter, "the largest parameter is drawn in fp64"},
        {"activations", activations, "kept for backward, a micro-batch"},
        {"working", 2 * working * element, "one layer's rows, forward and backward"},
        {"logits", logits, "of a chunk of 1,024 tokens, with gradient"},
        {"allocator", coming_and_going * 35 / 100, "35% of what comes and goes (measured)"},
    };
    if (plan.total() > largest.total()) {
      largest = plan;
    }
  }
  return largest;
}

std::string to_text(const MemoryPlan& plan) {
  std::string text;
  const auto line = [&](const std::string& name, std::int64_t bytes, const std::string& formula) {
    std::array<char, 160> row{};
    std::snprintf(row.data(), row.size(), "%-12s %10.1f MiB  %s\n", name.c_str(),
                  static_cast<double>(bytes) / (1 << 20), formula.c_str());
    text += row.data();
  };
  for (const MemoryItem& item : plan.items) {
    line(item.name, item.num_bytes, item.formula);
  }
  line("total", plan.total(), "the largest of " + std::to_string(plan.world_size) + " ranks");
  return text;
}

Json to_json(const MemoryPlan& plan) {
  Json items = Json::array();
  for (const MemoryItem& item : plan.items) {
    items.push_back({{"name", item.name}, {"bytes", item.num_bytes}, {"formula", item.formula}});
  }
  return {{"num_ranks", plan.world_size}, {"items", items}, {"total_bytes", plan.total()}};
}

}  // namespace coterie::training
