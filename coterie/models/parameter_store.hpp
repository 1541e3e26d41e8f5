// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "coterie/models/trainable_config.hpp"
#include "coterie/models/trainable_parameter.hpp"

namespace coterie::models {

/// What the modules of a decoder need to know while they are made, and where they put parameters.
struct ParameterStore {
  const TrainableConfig& config;
  parallel::Groups& groups;
  at::TensorOptions options;  ///< type and device of parameters
  std::vector<TrainableParameter> parameters;

  [[nodiscard]] const parallel::LayoutOptions& sizes() const { return groups.layout().options(); }
  [[nodiscard]] int model_rank() const { return groups.coordinates().model; }

  /// Registers a parameter `name` of `module` and files it under `prefix` + name with one piece,
  /// itself. Matrices begin normal, with the config's deviation times `scale`.
  at::Tensor add_whole(torch::nn::Module& module, const std::string& prefix,
                       const std::string& name, const std::vector<std::int64_t>& shape,
                       Beginning beginning, double scale = 1.0);
  /// As add_whole for the rows (axis 0) or columns (axis 1) that belong to this rank of the model
  /// group: `share` of a whole tensor of `shape`.
  at::Tensor add_shard(torch::nn::Module& module, const std::string& prefix,
                       const std::string& name, const std::vector<std::int64_t>& shape,
                       std::size_t axis, const parallel::Share& share, Beginning beginning,
                       double scale = 1.0);
  /// Any shape and pieces.
  at::Tensor add(torch::nn::Module& module, const std::string& name, TrainableParameter parameter,
                 const std::vector<std::int64_t>& local_shape);
};

/// A module that only holds tensors named `weight` and perhaps `bias`.
struct WeightHolder : torch::nn::Module {
  at::Tensor weight;
  at::Tensor bias;
};

}  // namespace coterie::models
