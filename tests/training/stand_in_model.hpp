// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/grad_mode.h>

#include <cstring>
#include <string>
#include <vector>

#include "coterie/base/json.hpp"
#include "coterie/training/training.hpp"

namespace coterie::training {

/// A model with dense and expert parameters and no exchange: a bigram model (embedding and head,
/// the same on every rank) and matrices, the "experts", each pulled towards a constant of its own
/// and the embedding's mean. Experts are spread over all ranks, or (spread = false) on every rank.
class StandInModel final : public Model {
 public:
  static constexpr std::int64_t kVocabulary = 4096;
  static constexpr std::int64_t kHidden = 8;
  static constexpr std::int64_t kExperts = 8;

  StandInModel(comm::Communicator& world, bool spread, at::ScalarType type = at::kFloat)
      : world_(world) {
    add_dense("embedding.weight", 1, type);
    add_dense("head.weight", 2, type);
    const int holders = spread ? world.size() : 1;
    const std::int64_t slots = kExperts / holders;
    const std::int64_t first = spread ? slots * world.rank() : 0;
    Parameter experts;
    experts.name = "experts";
    experts.is_expert = true;
    std::vector<at::Tensor> stack;
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      const std::int64_t expert = first + slot;
      stack.push_back(numbers({kHidden, kHidden}, 100 + static_cast<std::uint64_t>(expert)));
      experts.pieces.push_back({"experts." + std::to_string(expert) + ".weight",
                                {kHidden, kHidden},
                                {0, 0},
                                {kHidden, kHidden},
                                slot,
                                0});
      targets_.push_back(static_cast<double>(expert) / kExperts);
    }
    experts.value = at::stack(stack).to(type).requires_grad_(true);
    experts.replicas = spread ? nullptr : &world;
    parameters_.push_back(experts);
    zero_gradients();
  }

  std::span<Parameter> parameters() override { return parameters_; }

  StepResult forward_backward(const StepInput& input) override {
    StepResult result;
    std::vector<double> sums(2, 0.0);
    for (const MicroBatch& batch : input.micro_batches) {
      for (const std::vector<std::int32_t>& sequence : batch.sequences) {
        const at::Tensor loss = loss_of(sequence);
        (loss / static_cast<double>(input.num_targets)).backward();
        sums[0] += loss.item<double>();
        sums[1] += static_cast<double>(sequence.size() - 1);
      }
    }
    add_over_ranks(sums);
    at::Tensor pull;
    const at::Tensor& experts = parameters_[2].value;
    for (std::size_t slot = 0; slot < targets_.size(); ++slot) {
      const at::Tensor one =
          (experts.select(0, static_cast<std::int64_t>(slot)) - targets_[slot]).square().mean();
      pull = pull.defined() ? pull + one : one;
    }
    (pull / parameters_[2].num_replicas()).backward();
    std::vector<double> aux = {pull.item<double>() / parameters_[2].num_replicas()};
    add_over_ranks(aux);
    result.loss_sum = sums[0];
    result.num_targets = static_cast<std::int64_t>(sums[1]);
    result.aux_loss = aux[0];
    result.layers = {{0, std::vector<std::int64_t>(kExperts, 1), 0, kExperts, kExperts}};
    return result;
  }

  void sum_gradients() override {
    for (Parameter& parameter : parameters_) {
      if (parameter.num_replicas() > 1) {
        sum_over(*parameter.replicas, parameter.value.mutable_grad());
      }
    }
  }

  void zero_gradients() override {
    for (Parameter& parameter : parameters_) {
      parameter.value.mutable_grad() = at::zeros_like(parameter.value.detach());
    }
  }

  LossSum evaluate(std::span<const MicroBatch> micro_batches) override {
    const at::NoGradGuard no_grad;
    std::vector<double> sums(2, 0.0);
    for (const MicroBatch& batch : micro_batches) {
      for (const std::vector<std::int32_t>& sequence : batch.sequences) {
        sums[0] += loss_of(sequence).item<double>();
        sums[1] += static_cast<double>(sequence.size() - 1);
      }
    }
    add_over_ranks(sums);
    return {sums[0], static_cast<std::int64_t>(sums[1])};
  }

  void write_description(const std::filesystem::path& folder) const override {
    write_json_file(folder / "config.json", Json{{"model_type", "stand_in"}});
  }
  [[nodiscard]] ModelSize size() const override { return {100, 50, 200.0}; }
  [[nodiscard]] std::uint64_t bytes_sent() const override { return 0; }

 private:
  static at::Tensor numbers(at::IntArrayRef shape, std::uint64_t seed) {
    return at::randn(shape, at::detail::createCPUGenerator(seed), at::kDouble) * 0.1;
  }

  void add_dense(const std::string& name, std::uint64_t seed, at::ScalarType type) {
    Parameter parameter;
    parameter.name = name;
    parameter.value = numbers({kVocabulary, kHidden}, seed).to(type).requires_grad_(true);
    parameter.pieces = {{name, {kVocabulary, kHidden}, {0, 0}, {kVocabulary, kHidden}, -1, 0}};
    parameter.replicas = &world_;
    parameters_.push_back(parameter);
  }

  [[nodiscard]] at::Tensor loss_of(const std::vector<std::int32_t>& sequence) const {
    const at::Tensor ids = at::tensor(std::vector<std::int64_t>(sequence.begin(), sequence.end()));
    const std::int64_t count = ids.size(0) - 1;
    const at::Tensor x = parameters_[0].value.index_select(0, ids.narrow(0, 0, count));
    const at::Tensor logits = at::matmul(x, parameters_[1].value.t());
    const at::Tensor picked =
        logits.log_softmax(-1).gather(1, ids.narrow(0, 1, count).unsqueeze(1));
    return -picked.to(at::kDouble).sum();
  }

  void add_over_ranks(std::vector<double>& sums) {
    std::vector<double> all(sums.size() * static_cast<std::size_t>(world_.size()));
    world_.all_gather(std::as_bytes(std::span(sums)), std::as_writable_bytes(std::span(all)),
                      comm::Purpose::kControl);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      double sum = 0;
      for (std::size_t at = i; at < all.size(); at += sums.size()) {
        sum += all[at];
      }
      sums[i] = sum;
    }
  }

  static void sum_over(comm::Communicator& group, at::Tensor& values) {
    std::vector<std::int64_t> shape = {group.size()};
    shape.insert(shape.end(), values.sizes().begin(), values.sizes().end());
    const at::Tensor all = at::empty(shape, values.options());
    group.all_gather({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()},
                     {static_cast<std::byte*>(all.mutable_data_ptr()), all.nbytes()},
                     comm::Purpose::kGradient);
    values.copy_(all[0]);
    for (int rank = 1; rank < group.size(); ++rank) {
      values.add_(all[rank]);
    }
  }

  comm::Communicator& world_;
  std::vector<Parameter> parameters_;
  std::vector<double> targets_;  ///< of the experts in their slots
};

}  // namespace coterie::training
