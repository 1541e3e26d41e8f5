// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/layer/training_backward.hpp"

#include <utility>

// The backward of TrainingLayer, chunk after chunk; training_lanes.cpp has it in lanes.
namespace coterie::layer {

using exchange::ChunkRows;
using exchange::DeviceLists;
using exchange::Direction;
using exchange::Journey;
using kernels::ConstMatrixView;
using kernels::DType;
using kernels::MatrixView;

void TrainingLayer::backward_device(const BackwardDevice& task) {
  const DeviceLists& device = task.state.lists->devices[task.i];
  const ChunkRows& chunk = task.chunk;
  const DType type = chunk.inputs.type;
  const DType sum_type = type == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  const bool poison = options_.exchange.poison_buffers;
  const auto cuts = cut_rows(device.entries, chunk.rows.first, chunk.rows.end,
                             options_.exchange.max_expanded_rows);
  for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
    KeptPart* const kept = task.puts_off ? &keep_part() : nullptr;
    PartMemory& memory = kept != nullptr ? kept->memory : *part_memory_;
    const TrainingPart part = prepare(device, chunk, cuts[c], cuts[c + 1], memory);
    const auto& offsets = part.lists.expert_offsets;
    memory.input_at.resize(part.lists.row_of_expanded.size());
    for (std::size_t e = 0; e < memory.input_at.size(); ++e) {
      memory.input_at[e] =
          task.input_at[static_cast<std::size_t>(part.lists.row_of_expanded[e] - chunk.rows.first)];
    }
    const ConstMatrixView pre = pre_of(task, part, memory.input_at);
    memory.weights.gather(device.weights, part.entry_of);
    exchange::Scalars grad_weights(part.num_expanded(), sum_type);
    const MatrixView grad_pre =
        memory.grad_pre.resize_rows(part.num_expanded(), pre.columns, type, poison);
    const MatrixView hidden =
        memory.hidden.resize_rows(part.num_expanded(), options_.intermediate, type, poison);
    kernels::grouped_down_backward(
        {chunk.inputs, part.input_of, std::as_const(memory.weights).view(), offsets,
         task.experts.down,
         adds_down_bias_ ? std::span(task.experts.down_bias) : std::span<const ConstMatrixView>{},
         pre, options_.activation, grad_pre, hidden, grad_weights.view()},
        execution_);
    if (kept != nullptr) {
      kept->device = task.i;
      kept->chunk = task.chunk_number;
      kept->first_entry = part.first_entry;
      kept->first_row_of_chunk = part.first_row_of_chunk;
      kept->grad_pre = grad_pre;
      kept->hidden = hidden;
    } else {
      add_weight_gradients(
          {part, chunk.inputs, task.inputs, memory.input_at, grad_pre, hidden, memory.weights},
          task.gradients, execution_);
    }
    const MatrixView grad_rows =
        outputs_.resize_rows(part.num_expanded(), options_.hidden, sum_type, poison);
    kernels::grouped_up_backward({grad_pre, offsets, task.experts.up, grad_rows}, execution_);
    exchange::sum_entries(
        {part.lists, device.entries.offsets, nullptr, grad_rows, chunk.sums, part.sum_at(chunk)},
        execution_);
    scatter(grad_weights, part.entry_of, task.grad_weights);
  }
}

KeptPart& TrainingLayer::keep_part() {
  if (num_kept_ == kept_.size()) {
    kept_.push_back(std::make_unique<KeptPart>());
  }
  return *kept_[num_kept_++];
}

void TrainingLayer::add_kept_gradients(const BackwardRun& run, std::int32_t first,
                                       std::int32_t end) {
  for (std::size_t i = 0; i < num_kept_; ++i) {
    const KeptPart& kept = *kept_[i];
    if (kept.chunk < first || kept.chunk >= end) {
      continue;
    }
    const TrainingPart part{kept.memory.lists, kept.first_entry, kept.first_row_of_chunk,
                            kept.memory.input_of, kept.memory.entry_of};
    add_weight_gradients({part, gradients_.rows, run.inputs.rows, kept.memory.input_at,
                          kept.grad_pre, kept.hidden, kept.memory.weights},
                         run.results.experts[kept.device], execution_);
  }
}

void TrainingLayer::backward_chunk(const BackwardRun& run, std::int32_t chunk,
                                   const exchange::ChunkTrip* trip, bool puts_off) {
  for (std::size_t i = 0; i < run.state.lists->devices.size(); ++i) {
    const ChunkRows rows =
        trip != nullptr ? exchange_->work(i, gradients_, *trip) : exchange_->work(i, gradients_);
    const auto input_at =
        std::span(run.inputs.row_at[i])
            .subspan(static_cast<std::size_t>(rows.rows.first), rows.row_at.size());
    backward_device({i, run.state, run.inputs.rows, input_at, run.experts[i],
                     run.results.experts[i], rows, run.grad_weights[i], chunk, puts_off});
  }
}

void TrainingLayer::backward_by_chunks(const BackwardRun& run, exchange::RowHooks* hooks) {
  const exchange::TrainingLists& lists = *run.state.lists;
  const std::int64_t num_chunks = chunks_of(schedule::Phase::kBackward);
  const Journey there{lists, Direction::kRecompute, num_chunks, hooks};
  const Journey back{lists, Direction::kBackward, num_chunks, hooks};
  for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    if (!run.state.keeps_rows) {
      exchange_->dispatch(there, chunk, run.x, run.inputs);
    }
    exchange_->dispatch(back, chunk, run.grad_y, gradients_);
    backward_chunk(run, static_cast<std::int32_t>(chunk), nullptr, false);
    exchange_->combine(back, chunk, run.results.grad_x);
  }
}

}  // namespace coterie::layer
