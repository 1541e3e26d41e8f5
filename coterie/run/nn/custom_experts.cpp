// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/nn/custom_experts.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "coterie/base/error.hpp"
#include "coterie/run/nn/tensor_rows.hpp"

namespace coterie::nn {
namespace {

using exchange::Direction;
using exchange::Journey;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

/// What the nodes of one batch share.
struct Batch {
  std::shared_ptr<ExpertsRun> run;
  std::shared_ptr<const exchange::TrainingLists> lists;
  at::TensorOptions options;  // of rows
  std::int64_t hidden = 0;

  [[nodiscard]] exchange::TrainingExchange& exchange() const { return run->core().exchange(); }
  [[nodiscard]] const kernels::Execution& execution() const { return run->core().execution(); }
  [[nodiscard]] Journey journey(Direction direction) const {
    return {*lists, direction, run->core().options().forward_chunks, run->hooks()};
  }
  [[nodiscard]] kernels::DType row_type() const { return dtype_of(options.dtype().toScalarType()); }
  [[nodiscard]] at::TensorOptions sum_options() const {
    return options.dtype(row_type() == kernels::DType::kFloat64 ? at::kDouble : at::kFloat);
  }
};

/// One chunk on one local device.
struct DeviceChunk {
  exchange::ReceiveLists lists;
  std::vector<std::int32_t> entry_of;  // [expanded]
};

struct Chunk {
  std::shared_ptr<Batch> batch;
  std::int64_t number = 0;
  std::vector<DeviceChunk> devices;

  [[nodiscard]] std::int64_t num_expanded(std::size_t i) const {
    return std::ssize(devices[i].entry_of);
  }
};

std::shared_ptr<Chunk> make_chunk(const std::shared_ptr<Batch>& batch, std::int64_t number) {
  auto chunk = std::make_shared<Chunk>();
  chunk->batch = batch;
  chunk->number = number;
  const exchange::BlockRange blocks = batch->journey(Direction::kForward).blocks(number);
  for (const exchange::DeviceLists& device : batch->lists->devices) {
    const exchange::BlockRange rows = device.rows_of(blocks);
    DeviceChunk made;
    make_receive_lists(device.entries, batch->run->core().index().num_slots(device.device),
                       rows.first, rows.end - rows.first, made.lists);
    const std::int64_t first = device.entries.offsets[static_cast<std::size_t>(rows.first)];
    made.entry_of.resize(made.lists.expanded_of_entry.size());
    for (std::size_t entry = 0; entry < made.entry_of.size(); ++entry) {
      made.entry_of[static_cast<std::size_t>(made.lists.expanded_of_entry[entry])] =
          static_cast<std::int32_t>(first + static_cast<std::int64_t>(entry));
    }
    chunk->devices.push_back(std::move(made));
  }
  return chunk;
}

/// [expanded] rows of what arrived for device number i.
std::vector<std::int32_t> arrived_rows(const Chunk& chunk, std::size_t i,
                                       const exchange::ArrivedRows& arrived) {
  const exchange::ReceiveLists& lists = chunk.devices[i].lists;
  std::vector<std::int32_t> rows(lists.row_of_expanded.size());
  for (std::size_t e = 0; e < rows.size(); ++e) {
    rows[e] = arrived.row_at[i][static_cast<std::size_t>(lists.row_of_expanded[e])];
  }
  return rows;
}

/// Rows at home to one row an expert, device by device.
std::vector<at::Tensor> dispatch(const Chunk& chunk, Direction direction, const at::Tensor& rows,
                                 exchange::ArrivedRows& arrived) {
  const Batch& batch = *chunk.batch;
  arrived.begin(*batch.lists, false);
  batch.exchange().dispatch(batch.journey(direction), chunk.number, view_of(rows), arrived);
  std::vector<at::Tensor> expanded;
  for (std::size_t i = 0; i < chunk.devices.size(); ++i) {
    expanded.push_back(at::empty({chunk.num_expanded(i), batch.hidden}, batch.options));
    kernels::gather_rows(arrived.rows, arrived_rows(chunk, i, arrived),
                         mutable_view_of(expanded.back()), batch.execution());
  }
  return expanded;
}

/// One row an expert [devices] of [expanded, H] to the tokens of the chunk, within [R, H].
at::Tensor combine(const Chunk& chunk, Direction direction, variable_list expanded) {
  const Batch& batch = *chunk.batch;
  const Journey journey = batch.journey(direction);
  batch.exchange().begin_chunk(journey, chunk.number, batch.hidden, batch.row_type());
  const bool weighs = direction == Direction::kForward &&
                      batch.exchange().options().form == exchange::ExchangeForm::kPerDevice;
  for (std::size_t i = 0; i < chunk.devices.size(); ++i) {
    const exchange::DeviceLists& device = batch.lists->devices[i];
    at::Tensor& rows = expanded[i];
    rows = rows.defined() ? rows.to(batch.sum_options()).contiguous()
                          : at::zeros({chunk.num_expanded(i), batch.hidden}, batch.sum_options());
    const exchange::ChunkRows work = batch.exchange().chunk_rows(i);
    exchange::sum_entries(
        {chunk.devices[i].lists, device.entries.offsets, weighs ? &device.weights : nullptr,
         view_of(rows), work.sums, work.sum_at},
        batch.execution());
  }
  at::Tensor y = at::zeros({batch.lists->num_tokens, batch.hidden}, batch.options);
  batch.exchange().combine(journey, chunk.number, mutable_view_of(y));
  return y;
}

struct DispatchBackward final : torch::autograd::Node {
  std::shared_ptr<Chunk> chunk;
  std::string name() const override { return "MoEDispatchBackward"; }
  variable_list apply(variable_list&& grads) override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return {combine(*chunk, Direction::kBackward, std::move(grads))};
  }
};

struct CombineBackward final : torch::autograd::Node {
  std::shared_ptr<Chunk> chunk;
  std::vector<SavedVariable> outputs;

  std::string name() const override { return "MoECombineBackward"; }
  void release_variables() override {
    for (SavedVariable& output : outputs) {
      output.reset_data();
    }
  }

  variable_list apply(variable_list&& grads) override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Batch& batch = *chunk->batch;
    const at::Tensor grad_y =
        grads[0].defined() ? grads[0].contiguous()
                           : at::zeros({batch.lists->num_tokens, batch.hidden}, batch.options);
    exchange::ArrivedRows arrived;
    const auto grad_rows = dispatch(*chunk, Direction::kBackward, grad_y, arrived);
    variable_list results(1);
    std::vector<exchange::Scalars> grad_weights;
    for (std::size_t i = 0; i < chunk->devices.size(); ++i) {
      const exchange::DeviceLists& device = batch.lists->devices[i];
      exchange::Scalars weights;
      weights.gather(device.weights, chunk->devices[i].entry_of);
      const at::Tensor output = outputs[i].unpack();
      const at::Tensor in_sum_type = output.to(batch.sum_options()).contiguous();
      exchange::Scalars dots(chunk->num_expanded(i), device.weights.type());
      kernels::dot_rows(view_of(grad_rows[i]), view_of(in_sum_type), {}, dots.view(),
                        batch.execution());
      grad_weights.emplace_back(device.entries.num_entries(), device.weights.type());
      scatter(dots, chunk->devices[i].entry_of, grad_weights.back());
      const at::Tensor weight = tensor_over(std::as_const(weights).view());
      results.push_back((grad_rows[i].to(batch.sum_options()) * weight).to(output.scalar_type()));
    }
    results[0] = at::empty({batch.lists->num_tokens, batch.lists->top_k}, batch.sum_options());
    batch.exchange().return_weight_gradients(*batch.lists, grad_weights,
                                             mutable_view_of(results[0]));
    return results;
  }

 private:
  static void scatter(const exchange::Scalars& from, std::span<const std::int32_t> at,
                      exchange::Scalars& to) {
    for (std::size_t i = 0; i < at.size(); ++i) {
      if (from.type() == kernels::DType::kFloat64) {
        to.data<double>()[at[i]] = from.data<double>()[i];
      } else {
        to.data<float>()[at[i]] = from.data<float>()[i];
      }
    }
  }
};

std::vector<at::Tensor> dispatch_node(const std::shared_ptr<Chunk>& chunk, const at::Tensor& rows) {
  std::vector<at::Tensor> expanded;
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    exchange::ArrivedRows arrived;
    expanded = dispatch(*chunk, Direction::kForward, rows, arrived);
  }
  if (torch::autograd::compute_requires_grad(rows)) {
    auto node =
        std::shared_ptr<DispatchBackward>(new DispatchBackward(), torch::autograd::deleteNode);
    node->set_next_edges(torch::autograd::collect_next_edges(rows));
    node->chunk = chunk;
    for (const at::Tensor& tensor : expanded) {
      torch::autograd::set_history(tensor, node);
    }
  }
  return expanded;
}

at::Tensor combine_node(const std::shared_ptr<Chunk>& chunk, const at::Tensor& weights,
                        const std::vector<at::Tensor>& outputs) {
  bool needs_grad = torch::autograd::compute_requires_grad(weights);
  for (const at::Tensor& output : outputs) {
    needs_grad = needs_grad || torch::autograd::compute_requires_grad(output);
  }
  at::Tensor y;
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    y = combine(*chunk, Direction::kForward, outputs);
  }
  if (needs_grad) {
    auto node =
        std::shared_ptr<CombineBackward>(new CombineBackward(), torch::autograd::deleteNode);
    torch::autograd::edge_list edges = torch::autograd::collect_next_edges(weights);
    for (const at::Tensor& output : outputs) {
      const auto more = torch::autograd::collect_next_edges(output);
      edges.insert(edges.end(), more.begin(), more.end());
      node->outputs.emplace_back(output, false);
    }
    node->set_next_edges(std::move(edges));
    node->chunk = chunk;
    torch::autograd::set_history(y, node);
  }
  return y;
}

/// The experts of one device on their rows.
at::Tensor run_modules(ExpertsRun& run, ExpertsImpl& experts, const DeviceChunk& device,
                       std::int32_t device_id, const at::Tensor& rows) {
  std::vector<at::Tensor> outputs;
  const auto& ids = run.core().index().experts_of(device_id);
  for (std::size_t slot = 0; slot < ids.size(); ++slot) {
    const std::int64_t first = device.lists.expert_offsets[slot];
    const std::int64_t count = device.lists.expert_offsets[slot + 1] - first;
    const at::Tensor mine = rows.narrow(0, first, count);
    outputs.push_back(experts.apply(experts.place_of(ids[slot]), mine));
    COTERIE_REQUIRE(outputs.back().sizes() == mine.sizes(), run.core().options().name, ": expert ",
                    ids[slot], " made ", outputs.back().sizes(), " of ", mine.sizes());
  }
  return at::cat(outputs);
}

}  // namespace

at::Tensor custom_experts(const std::shared_ptr<ExpertsRun>& run, ExpertsImpl& experts,
                          const ExpertsRun::Batch& batch, std::int64_t& num_replicas) {
  auto shared = std::make_shared<Batch>();
  shared->run = run;
  shared->options = batch.rows.options();
  shared->hidden = batch.rows.size(1);
  shared->lists = run->core().exchange().make_lists(run->routing_of(batch.ids),
                                                    view_of(batch.weights), batch.source_offsets);
  num_replicas = shared->lists->sent.num_rows();
  at::Tensor y;
  for (std::int64_t number = 0; number < run->core().options().forward_chunks; ++number) {
    const auto chunk = make_chunk(shared, number);
    const auto expanded = dispatch_node(chunk, batch.rows);
    std::vector<at::Tensor> outputs;
    for (std::size_t i = 0; i < expanded.size(); ++i) {
      outputs.push_back(run_modules(*run, experts, chunk->devices[i],
                                    shared->lists->devices[i].device, expanded[i]));
    }
    const at::Tensor of_chunk = combine_node(chunk, batch.weights, outputs);
    y = y.defined() ? y + of_chunk : of_chunk;  // each row is written by one chunk, others add 0
  }
  return y;
}

}  // namespace coterie::nn
