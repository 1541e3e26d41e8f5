// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/trainable_moe.hpp"

#include "coterie/base/error.hpp"

namespace coterie::models {
namespace {

/// Index of a layer among the MoE layers.
std::size_t moe_index(const ModelConfig& model, std::int64_t layer) {
  const auto place = std::ranges::lower_bound(model.moe_layers, static_cast<std::int32_t>(layer));
  return static_cast<std::size_t>(place - model.moe_layers.begin());
}

std::shared_ptr<const pruning::LayerPruner> pruner_of(const ModelConfig& model, std::int64_t layer,
                                                      const TrainableOptions& options) {
  const pruning::Policy& policy = *options.pruning;
  COTERIE_REQUIRE(!options.placements.empty(), "pruning needs placements");
  COTERIE_REQUIRE(policy.layers == model.moe_layers, "the pruning policy is for ",
                  policy.layers.size(), " layers, the model has ", model.moe_layers.size(),
                  " layers of experts or others");
  const std::size_t index = moe_index(model, layer);
  const placement::LayerPlacement& placement = options.placements.at(index);
  COTERIE_REQUIRE(policy.num_devices == placement.num_devices(), "layer ", layer,
                  ": the pruning policy is for ", policy.num_devices,
                  " devices, the placement for ", placement.num_devices());
  const pruning::SimilarityTable* similarity = nullptr;
  if (options.similarity) {
    COTERIE_REQUIRE(options.similarity->layers == model.moe_layers,
                    "the similarity tables are of other layers than the model's");
    similarity = &options.similarity->tables[index];
  }
  return std::make_shared<pruning::LayerPruner>(placement, policy.options,
                                                policy.options.budget_of(index), similarity);
}

nn::MoELayerOptions layer_options(ParameterStore& store, std::int64_t layer,
                                  const TrainableOptions& options) {
  const ModelConfig& model = store.config.model;
  const parallel::LayoutOptions& sizes = store.sizes();
  nn::MoELayerOptions made;
  made.name = "layer " + std::to_string(layer);
  made.hidden = model.hidden_size;
  made.intermediate = model.expert_intermediate_size;
  made.num_experts = static_cast<std::int32_t>(model.num_experts);
  made.expert_kind = store.config.is_gpt2() ? nn::ExpertKind::kGeluTanh : nn::ExpertKind::kSwiGlu;
  made.expert_bias = store.config.is_gpt2();
  made.gate = gates::make_gate(layer_gate_options(store, layer, options));
  made.gate->set_execution(options.execution);
  made.order = gates::make_order(options.order);
  if (!options.placements.empty()) {
    made.placement = options.placements.at(moe_index(model, layer));
  }
  if (sizes.expert * sizes.expert_shard > 1) {
    made.expert_group = &store.groups.expert();
    made.shard_group = &store.groups.expert_shard();
  }
  if (options.pruning) {
    made.pruner = pruner_of(model, layer, options);
  }
  made.forward_chunks = options.forward_chunks;
  made.backward_chunks = options.backward_chunks;
  made.execution = options.execution;
  made.path = options.reference    ? nn::LayerPath::kReference
              : options.grouped_mm ? nn::LayerPath::kGroupedMm
                                   : nn::LayerPath::kExchange;
  made.type = options.type;
  made.initializer_range = 0.0;  // begin_parameter or a checkpoint gives the experts' weights
  return made;
}

}  // namespace

nn::MoELayer make_trainable_moe(ParameterStore& store, std::int64_t layer,
                                const TrainableOptions& options) {
  const ExpertPart part = expert_part(store, layer, options);
  nn::MoELayer moe(layer_options(store, layer, options));
  moe->to(options.device);
  file_gate(store, layer, moe->gate());
  file_experts(store, layer, part, *moe->experts());
  return moe;
}

ExpertPart expert_part(const ParameterStore& store, std::int64_t layer,
                       const TrainableOptions& options) {
  const ModelConfig& model = store.config.model;
  const parallel::LayoutOptions& sizes = store.sizes();
  const parallel::Coordinates& at = store.groups.coordinates();
  const std::string name = "layer " + std::to_string(layer);
  ExpertPart part;
  part.width =
      parallel::equal_share_of(model.expert_intermediate_size, sizes.expert_shard, at.expert_shard,
                               name + ": expert_intermediate_size", "expert_shard");
  const bool stands_for_all = sizes.expert * sizes.expert_shard == 1;
  if (!options.placements.empty() && !stands_for_all) {
    const auto& placement = options.placements.at(moe_index(model, layer));
    COTERIE_REQUIRE(placement.num_devices() == sizes.expert, name, ": a placement for ",
                    placement.num_devices(), " devices, expert = ", sizes.expert);
    part.experts = placement.experts_of_device[static_cast<std::size_t>(at.expert)];
    return part;
  }
  const parallel::Share experts = parallel::equal_share_of(
      model.num_experts, sizes.expert, at.expert, name + ": num_experts", "expert");
  for (std::int64_t expert = experts.begin; expert < experts.end; ++expert) {
    part.experts.push_back(static_cast<std::int32_t>(expert));
  }
  return part;
}

gates::GateOptions layer_gate_options(const ParameterStore& store, std::int64_t layer,
                                      const TrainableOptions& options) {
  const ModelConfig& model = store.config.model;
  gates::GateOptions gate = options.gate;
  gate.name = "layer " + std::to_string(layer);
  gate.hidden = model.hidden_size;
  gate.num_experts = static_cast<std::int32_t>(model.num_experts);
  const bool has_k =
      gate.kind != gates::GateKind::kExpertChoice && gate.kind != gates::GateKind::kSoftMoe;
  gate.top_k = has_k ? static_cast<std::int32_t>(model.top_k) : gates::GateOptions{}.top_k;
  if (gate.kind == gates::GateKind::kTopkSoftmax) {
    // A softmax over the selected logits is renormalised already.
    gate.renormalise = model.renormalise && gate.softmax_over == gates::SoftmaxOver::kAllExperts;
  }
  gate.type =
      options.type == at::kDouble ? gates::RouterType::kFloat64 : gates::RouterType::kFloat32;
  gate.noise_stream = static_cast<std::uint64_t>(layer);
  gate.initializer_range = store.config.initializer_range;
  return gate;
}

}  // namespace coterie::models
