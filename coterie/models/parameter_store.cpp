// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/parameter_store.hpp"

#include <utility>

namespace coterie::models {

at::Tensor ParameterStore::add(torch::nn::Module& module, const std::string& name,
                               TrainableParameter parameter,
                               const std::vector<std::int64_t>& local_shape) {
  parameter.value = module.register_parameter(name, at::empty(local_shape, options));
  parameter.has_decay = local_shape.size() > 1;
  parameters.push_back(std::move(parameter));
  return parameters.back().value;
}

at::Tensor ParameterStore::add_whole(torch::nn::Module& module, const std::string& prefix,
                                     const std::string& name,
                                     const std::vector<std::int64_t>& shape, Beginning beginning,
                                     double scale) {
  TrainableParameter parameter;
  parameter.name = prefix + name;
  parameter.pieces = {whole_piece(parameter.name, shape)};
  parameter.beginning = beginning;
  parameter.deviation = config.initializer_range * scale;
  return add(module, name, std::move(parameter), shape);
}

at::Tensor ParameterStore::add_shard(torch::nn::Module& module, const std::string& prefix,
                                     const std::string& name,
                                     const std::vector<std::int64_t>& shape, std::size_t axis,
                                     const parallel::Share& share, Beginning beginning,
                                     double scale) {
  TrainableParameter parameter;
  parameter.name = prefix + name;
  parameter.kind = parallel::ParameterKind::kHeadShard;
  ParameterPiece piece = whole_piece(parameter.name, shape);
  piece.start[axis] = share.begin;
  piece.size[axis] = share.size();
  const std::vector<std::int64_t> local_shape = piece.size;
  parameter.pieces = {std::move(piece)};
  parameter.beginning = beginning;
  parameter.deviation = config.initializer_range * scale;
  return add(module, name, std::move(parameter), local_shape);
}

}  // namespace coterie::models
