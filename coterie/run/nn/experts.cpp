// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/nn/experts.hpp"

#include <ATen/ATen.h>
#include <torch/nn/functional/activation.h>

#include <algorithm>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"

namespace coterie::nn {
namespace {

std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;  // FNV-1a
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  return hash;
}

}  // namespace

ExpertsImpl::ExpertsImpl(const MoELayerOptions& options, std::vector<std::int32_t> experts)
    : torch::nn::Module("Experts"), kind_(options.expert_kind), expert_ids_(std::move(experts)) {
  if (options.shard_group != nullptr) {
    num_shards_ = options.shard_group->size();
    shard_ = options.shard_group->rank();
  }
  if (kind_ != ExpertKind::kCustom) {
    make_weights(options);
    return;
  }
  for (const std::int32_t expert : expert_ids_) {
    torch::nn::AnyModule made = options.expert_factory(expert);
    COTERIE_REQUIRE(!made.is_empty(), options.name, ": expert_factory made no module for expert ",
                    expert);
    register_module(std::to_string(expert), made.ptr());
    modules_.push_back(std::move(made));
  }
}

std::int64_t ExpertsImpl::place_of(std::int32_t expert) const {
  const auto found = std::lower_bound(expert_ids_.begin(), expert_ids_.end(), expert);
  return found != expert_ids_.end() && *found == expert ? found - expert_ids_.begin() : -1;
}

at::Tensor ExpertsImpl::draw(const MoELayerOptions& options, const std::string& name,
                             std::int64_t rows, std::int64_t columns) const {
  if (options.initializer_range == 0.0) {  // whoever made the layer gives its weights
    return at::zeros({std::ssize(expert_ids_), rows, columns}, options.type);
  }
  at::Tensor all = at::empty({std::ssize(expert_ids_), rows, columns}, at::kDouble);
  auto* data = all.mutable_data_ptr<double>();
  const std::uint64_t seed = options.initializer_seed ^ hash_of(options.name + "." + name);
  for (const std::int32_t expert : expert_ids_) {
    Random random(seed, static_cast<std::uint64_t>(expert));
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      *data++ = options.initializer_range * random.normal();
    }
  }
  return all.to(options.type);
}

void ExpertsImpl::make_weights(const MoELayerOptions& options) {
  const std::int64_t width = options.intermediate / num_shards_;
  const auto shard_of = [&](const at::Tensor& whole, std::int64_t dim) {
    return whole.narrow(dim, shard_ * width, width);
  };
  if (kind_ == ExpertKind::kSwiGlu) {
    const at::Tensor gate = draw(options, "gate_proj", options.intermediate, options.hidden);
    const at::Tensor up_rows = draw(options, "up_proj", options.intermediate, options.hidden);
    up = register_parameter("gate_up_proj",
                            at::cat({shard_of(gate, 1), shard_of(up_rows, 1)}, 1).contiguous());
  } else {
    up = register_parameter(
        "up_proj",
        shard_of(draw(options, "up_proj", options.intermediate, options.hidden), 1).contiguous());
  }
  down = register_parameter(
      "down_proj",
      shard_of(draw(options, "down_proj", options.hidden, options.intermediate), 2).contiguous());
  if (options.expert_bias) {
    const auto held = std::ssize(expert_ids_);
    up_bias = register_parameter("up_bias", at::zeros({held, width}, options.type));
    down_bias = register_parameter("down_bias", at::zeros({held, options.hidden}, options.type));
  }
}

at::Tensor ExpertsImpl::apply(std::int64_t place, const at::Tensor& rows) {
  if (kind_ == ExpertKind::kCustom) {
    return modules_[static_cast<std::size_t>(place)].forward(rows);
  }
  at::Tensor pre = at::linear(rows, up[place], up_bias.defined() ? up_bias[place] : at::Tensor());
  if (kind_ == ExpertKind::kSwiGlu) {
    const auto halves = pre.chunk(2, 1);
    pre = at::silu(halves[0]) * halves[1];
  } else {
    pre = at::gelu(pre, kind_ == ExpertKind::kGeluTanh ? "tanh" : "none");
  }
  return at::linear(pre, down[place], down_bias.defined() ? down_bias[place] : at::Tensor());
}

}  // namespace coterie::nn
