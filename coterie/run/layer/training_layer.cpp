// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/layer/training_layer.hpp"

#include <algorithm>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/run/layer/phase_steps.hpp"
#include "coterie/run/layer/training_backward.hpp"
#include "coterie/run/layer/training_part.hpp"

namespace coterie::layer {
namespace {

using exchange::ArrivedRows;
using exchange::ChunkRows;
using exchange::DeviceLists;
using exchange::Direction;
using exchange::Journey;
using kernels::ConstMatrixView;
using kernels::DType;
using kernels::MatrixView;

void check_weight(const ConstMatrixView& weight, std::int64_t rows, std::int64_t columns,
                  const std::string& where) {
  COTERIE_REQUIRE(weight.data != nullptr, where, " is missing, but this process computes it");
  COTERIE_REQUIRE(weight.rows == rows && weight.columns == columns, where, " is [", weight.rows,
                  ", ", weight.columns, "], not [", rows, ", ", columns, "]");
}

void check_rows(const std::string& name, const char* what, const ConstMatrixView& rows,
                const ConstMatrixView& like) {
  COTERIE_REQUIRE(rows.rows == like.rows && rows.columns == like.columns && rows.type == like.type,
                  name, ": ", what, " is [", rows.rows, ", ", rows.columns, "], not [", like.rows,
                  ", ", like.columns, "], or of another type than x");
}

}  // namespace

void check_training_options(const TrainingOptions& options) {
  const std::string& name = options.name;
  COTERIE_REQUIRE(options.hidden > 0, name, ": hidden size is ", options.hidden);
  COTERIE_REQUIRE(options.intermediate > 0, name, ": intermediate size is ", options.intermediate);
  COTERIE_REQUIRE(options.num_experts > 0, name, ": number of experts is ", options.num_experts);
  COTERIE_REQUIRE(options.forward_chunks > 0, name, ": forward_chunks is ", options.forward_chunks);
  COTERIE_REQUIRE(options.backward_chunks > 0, name, ": backward_chunks is ",
                  options.backward_chunks);
  exchange::check_exchange_options(options.exchange);
}

std::size_t TrainingState::bytes_held() const {
  std::size_t bytes = inputs.memory.capacity();
  for (const exchange::ByteBuffer& buffer : pre) {
    bytes += buffer.capacity();
  }
  return bytes;
}

TrainingLayer::TrainingLayer(TrainingOptions options, placement::LayerPlacement placement,
                             exchange::RankGroups groups, const kernels::Execution& execution,
                             std::shared_ptr<exchange::RowMovement> movement)
    : options_(std::move(options)),
      execution_(execution),
      adds_down_bias_(groups.shard_rank() == 0),
      part_memory_(std::make_unique<PartMemory>()) {
  check_training_options(options_);
  COTERIE_REQUIRE(placement.num_experts == options_.num_experts, options_.name,
                  ": the placement is for ", placement.num_experts, " experts, the layer has ",
                  options_.num_experts);
  index_ = std::make_unique<exchange::PlacementIndex>(std::move(placement));
  exchange_ = std::make_unique<exchange::TrainingExchange>(
      *index_, options_.exchange, groups, options_.name, execution_, std::move(movement));
}

TrainingLayer::~TrainingLayer() = default;

std::int64_t TrainingLayer::chunks_of(schedule::Phase phase) const {
  const bool is_forward = phase == schedule::Phase::kForward;
  if (plan_) {
    return (is_forward ? plan_->forward : plan_->backward).num_chunks();
  }
  return is_forward ? options_.forward_chunks : options_.backward_chunks;
}

void TrainingLayer::check_experts(std::span<const DeviceExperts> experts) const {
  const auto devices = exchange_->local_devices();
  COTERIE_REQUIRE(experts.size() == devices.size(), options_.name, ": experts of ", experts.size(),
                  " devices, not ", devices.size());
  const std::int64_t pre =
      options_.intermediate * kernels::pre_activations_per_hidden(options_.activation);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto& ids = index_->experts_of(devices[i]);
    const DeviceExperts& held = experts[i];
    COTERIE_REQUIRE(held.up.size() == ids.size() && held.down.size() == ids.size() &&
                        (held.up_bias.empty() || held.up_bias.size() == ids.size()) &&
                        (held.down_bias.empty() || held.down_bias.size() == ids.size()),
                    options_.name, ": device ", devices[i], " holds ", ids.size(),
                    " experts; weights are given for ", held.up.size(), " and ", held.down.size());
    for (std::size_t slot = 0; slot < ids.size(); ++slot) {
      const std::string where = join_message(options_.name, ": expert ", ids[slot]);
      check_weight(held.up[slot], pre, options_.hidden, where + ": up");
      check_weight(held.down[slot], options_.hidden, options_.intermediate, where + ": down");
    }
  }
}

std::unique_ptr<TrainingState> TrainingLayer::forward(const TrainingBatch& batch,
                                                      std::span<const DeviceExperts> experts,
                                                      MatrixView y, exchange::RowHooks* hooks) {
  COTERIE_REQUIRE(batch.x.columns == options_.hidden, options_.name, ": x is [", batch.x.rows, ", ",
                  batch.x.columns, "], not [tokens, ", options_.hidden, "]");
  COTERIE_REQUIRE((batch.x.type == DType::kFloat64) == (batch.weights.type == DType::kFloat64),
                  options_.name, ": routing weights are ", kernels::size_of(batch.weights.type),
                  " bytes wide; rows of float64, and only they, take weights of float64");
  check_rows(options_.name, "y", y, batch.x);
  check_experts(experts);
  auto state = std::make_unique<TrainingState>();
  state->lists = exchange_->make_lists(batch.routing, batch.weights, batch.source_offsets);
  const std::size_t num_devices = state->lists->devices.size();
  state->keeps_rows = batch.keep && !options_.recompute;
  const bool in_lanes = runs_in_lanes(hooks);
  state->inputs.begin(*state->lists, state->keeps_rows || in_lanes);
  state->pre.resize(num_devices);
  state->pre_at.resize(num_devices);
  const std::int64_t pre =
      options_.intermediate * kernels::pre_activations_per_hidden(options_.activation);
  for (std::size_t i = 0; i < num_devices && state->keeps_rows; ++i) {
    const std::int64_t num_entries = state->lists->devices[i].entries.num_entries();
    state->pre[i].resize_rows(num_entries, pre, batch.x.type, options_.exchange.poison_buffers);
    state->pre_at[i].resize(static_cast<std::size_t>(num_entries));
  }
  const Journey journey{*state->lists, Direction::kForward, chunks_of(schedule::Phase::kForward),
                        hooks};
  if (in_lanes) {
    forward_in_lanes(batch, experts, y, *state);
  }
  for (std::int64_t chunk = 0; chunk < journey.num_chunks && !in_lanes; ++chunk) {
    exchange_->dispatch(journey, chunk, batch.x, state->inputs);
    for (std::size_t i = 0; i < num_devices; ++i) {
      forward_device(i, *state, experts[i], exchange_->work(i, state->inputs));
    }
    exchange_->combine(journey, chunk, y);
  }
  if (!state->keeps_rows) {
    state->inputs = {};
  }
  return state;
}

TrainingPart TrainingLayer::prepare(const DeviceLists& device, const ChunkRows& chunk,
                                    std::int64_t first_row, std::int64_t end_row,
                                    PartMemory& memory) const {
  make_receive_lists(device.entries, index_->num_slots(device.device), first_row,
                     end_row - first_row, memory.lists);
  const exchange::ReceiveLists& lists = memory.lists;
  TrainingPart part{lists,
                    device.entries.offsets[static_cast<std::size_t>(first_row)],
                    first_row - chunk.rows.first,
                    {},
                    {}};
  memory.entry_of.resize(lists.expanded_of_entry.size());
  for (std::size_t entry = 0; entry < memory.entry_of.size(); ++entry) {
    memory.entry_of[static_cast<std::size_t>(lists.expanded_of_entry[entry])] =
        static_cast<std::int32_t>(part.first_entry + static_cast<std::int64_t>(entry));
  }
  memory.input_of.resize(lists.row_of_expanded.size());
  for (std::size_t i = 0; i < memory.input_of.size(); ++i) {
    memory.input_of[i] =
        chunk.row_at[static_cast<std::size_t>(lists.row_of_expanded[i] - chunk.rows.first)];
  }
  part.input_of = memory.input_of;
  part.entry_of = memory.entry_of;
  return part;
}

MatrixView TrainingLayer::up(const TrainingPart& part, const ConstMatrixView& inputs,
                             const DeviceExperts& experts, const MatrixView& pre) {
  const MatrixView hidden = hidden_.resize_rows(part.num_expanded(), options_.intermediate,
                                                inputs.type, options_.exchange.poison_buffers);
  kernels::grouped_up({inputs, part.input_of, part.lists.expert_offsets, experts.up, hidden,
                       options_.activation, experts.up_bias, pre},
                      execution_);
  return hidden;
}

void TrainingLayer::forward_device(std::size_t i, TrainingState& state,
                                   const DeviceExperts& experts, const ChunkRows& chunk) {
  const DeviceLists& device = state.lists->devices[i];
  const std::int64_t num_pre =
      options_.intermediate * kernels::pre_activations_per_hidden(options_.activation);
  const auto cuts = cut_rows(device.entries, chunk.rows.first, chunk.rows.end,
                             options_.exchange.max_expanded_rows);
  const bool weighs = options_.exchange.form == exchange::ExchangeForm::kPerDevice;
  const DType sum_type = chunk.inputs.type == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
    const TrainingPart part = prepare(device, chunk, cuts[c], cuts[c + 1], *part_memory_);
    MatrixView pre;
    if (state.keeps_rows) {
      auto* memory = state.pre[i].bytes().data() +
                     part.first_entry * num_pre * kernels::size_of(chunk.inputs.type);
      pre = {memory, part.num_expanded(), num_pre, num_pre, chunk.inputs.type};
      for (std::size_t e = 0; e < part.entry_of.size(); ++e) {
        state.pre_at[i][static_cast<std::size_t>(part.entry_of[e])] =
            static_cast<std::int32_t>(part.first_entry + static_cast<std::int64_t>(e));
      }
    }
    const MatrixView hidden = up(part, chunk.inputs, experts, pre);
    const MatrixView rows = outputs_.resize_rows(part.num_expanded(), options_.hidden, sum_type,
                                                 options_.exchange.poison_buffers);
    kernels::grouped_down(
        {hidden, part.lists.expert_offsets, experts.down, rows,
         adds_down_bias_ ? std::span(experts.down_bias) : std::span<const ConstMatrixView>{}},
        execution_);
    exchange::sum_entries({part.lists, device.entries.offsets, weighs ? &device.weights : nullptr,
                           rows, chunk.sums, part.sum_at(chunk)},
                          execution_);
  }
}

ConstMatrixView TrainingLayer::pre_of(const BackwardDevice& task, const TrainingPart& part,
                                      std::span<const std::int32_t> input_of) {
  const DType type = task.inputs.type;
  const std::int64_t num_pre =
      options_.intermediate * kernels::pre_activations_per_hidden(options_.activation);
  if (!task.state.keeps_rows) {
    const MatrixView pre =
        pre_.resize_rows(part.num_expanded(), num_pre, type, options_.exchange.poison_buffers);
    TrainingPart again = part;
    again.input_of = input_of;
    up(again, task.inputs, task.experts, pre);
    return pre;
  }
  const auto& kept = task.state.pre_at[task.i];
  auto* memory = task.state.pre[task.i].bytes().data();
  bool is_as_kept = true;
  pre_rows_.resize(part.entry_of.size());
  for (std::size_t e = 0; e < pre_rows_.size(); ++e) {
    pre_rows_[e] = kept[static_cast<std::size_t>(part.entry_of[e])];
    is_as_kept = is_as_kept && pre_rows_[e] == pre_rows_[0] + static_cast<std::int32_t>(e);
  }
  if (is_as_kept) {
    const std::int64_t first = pre_rows_.empty() ? 0 : pre_rows_[0];
    return {memory + first * num_pre * kernels::size_of(type), part.num_expanded(), num_pre,
            num_pre, type};
  }
  const MatrixView pre =
      pre_.resize_rows(part.num_expanded(), num_pre, type, options_.exchange.poison_buffers);
  const auto num_kept = static_cast<std::int64_t>(kept.size());
  kernels::gather_rows({memory, num_kept, num_pre, num_pre, type}, pre_rows_, pre, execution_);
  return pre;
}

void TrainingLayer::backward(TrainingState& state, ConstMatrixView x, ConstMatrixView grad_y,
                             std::span<const DeviceExperts> experts, const Results& results,
                             exchange::RowHooks* hooks) {
  check_rows(options_.name, "dL/dy", grad_y, x);
  check_rows(options_.name, "dL/dx", results.grad_x, x);
  check_experts(experts);
  const exchange::TrainingLists& lists = *state.lists;
  std::vector<exchange::Scalars> grad_weights;
  for (std::size_t i = 0; i < lists.devices.size(); ++i) {
    grad_weights.emplace_back(lists.devices[i].entries.num_entries(), lists.weights_sent.type());
    set_zero(results.experts[i]);
  }
  const bool in_lanes = runs_in_lanes(hooks);
  gradients_.begin(lists, in_lanes);
  if (!state.keeps_rows) {
    inputs_again_.begin(lists, in_lanes);
  }
  ArrivedRows& inputs = state.keeps_rows ? state.inputs : inputs_again_;
  if (inputs.is_borrowed) {
    inputs.rows = x;
  }
  const BackwardRun run{state, x, grad_y, experts, results, inputs, grad_weights};
  if (in_lanes) {
    backward_in_lanes(run);
  } else {
    backward_by_chunks(run, hooks);
  }
  exchange_->return_weight_gradients(lists, grad_weights, results.grad_weights);
}

}  // namespace coterie::layer
