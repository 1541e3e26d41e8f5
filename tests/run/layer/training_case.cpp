// SPDX-License-Identifier: Apache-2.0
#include "tests/run/layer/training_case.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "coterie/base/random.hpp"

namespace coterie::layer {
namespace {

using kernels::DType;

constexpr std::int64_t kHidden = 18;
constexpr std::int64_t kIntermediate = 12;
constexpr std::int32_t kNumExperts = 9;
constexpr std::int32_t kIdleExpert = 4;

void make_routing(TrainingCase& made, std::uint64_t seed) {
  Random random(seed, 3);
  const auto devices_of = made.placement.devices_of_expert();
  std::vector<std::int32_t> pool(kNumExperts);
  std::iota(pool.begin(), pool.end(), 0);
  pool.erase(std::find(pool.begin(), pool.end(), kIdleExpert));
  for (std::int64_t token = 0; token < made.num_tokens(); ++token) {
    random.shuffle(std::span(pool));
    const bool has_none = random.below(11) == 0;
    for (std::int32_t i = 0; i < made.top_k; ++i) {
      const bool is_none = has_none || random.below(13) == 0;
      const std::int32_t expert = is_none ? -1 : pool[static_cast<std::size_t>(i)];
      made.ids.push_back(expert);
      if (is_none) {
        made.devices.push_back(-77);
        made.weights.set(token, i, std::bit_cast<float>(0x7FC00000U));
      } else {
        const auto& devices = devices_of[static_cast<std::size_t>(expert)];
        made.devices.push_back(devices[random.below(devices.size())]);
        made.weights.set(token, i, static_cast<float>(random.uniform()));
      }
    }
  }
}

/// An expert's shard: rows of up (both halves of SwiGLU), columns of down.
struct Shard {
  Block up;
  Block down;
  Block up_bias;
};

Shard shard_of(const TrainingCase& made, std::int32_t expert, int shard, int num_shards) {
  const auto e = static_cast<std::size_t>(expert);
  const std::int64_t width = kIntermediate / num_shards;
  const std::int64_t halves = kernels::pre_activations_per_hidden(made.options.activation);
  Shard part{Block(halves * width, kHidden, made.type), Block(kHidden, width, made.type),
             Block(1, halves * width, made.type)};
  for (std::int64_t half = 0; half < halves; ++half) {
    for (std::int64_t row = 0; row < width; ++row) {
      const std::int64_t from = half * kIntermediate + shard * width + row;
      for (std::int64_t c = 0; c < kHidden; ++c) {
        part.up.set(half * width + row, c, made.up[e].at(from, c));
        part.down.set(c, row, made.down[e].at(c, shard * width + row));
      }
      if (!made.up_bias.empty()) {
        part.up_bias.set(0, half * width + row, made.up_bias[e].at(0, from));
      }
    }
  }
  return part;
}

/// The weights that one process holds and the memory of their gradients.
class HeldExperts {
 public:
  HeldExperts(const TrainingCase& made, const exchange::RankGroups& groups,
              std::span<const std::int32_t> devices) {
    for (const std::int32_t device : devices) {
      for (const std::int32_t expert :
           made.placement.experts_of_device[static_cast<std::size_t>(device)]) {
        shards_.push_back(shard_of(made, expert, groups.shard_rank(), groups.num_shards()));
      }
    }
    const bool has_bias = !made.up_bias.empty();
    const DType sum_type = made.type == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    const auto like = [&](const kernels::ConstMatrixView& view) {
      sums_.emplace_back(view.rows, view.columns, sum_type);
      return sums_.back().view();
    };
    sums_.reserve(4 * shards_.size());
    std::size_t at = 0;
    for (const std::int32_t device : devices) {
      DeviceExperts held;
      DeviceGradients gradients;
      for (const std::int32_t expert :
           made.placement.experts_of_device[static_cast<std::size_t>(device)]) {
        const Shard& shard = shards_[at++];
        held.up.push_back(shard.up.view());
        held.down.push_back(shard.down.view());
        gradients.up.push_back(like(shard.up.view()));
        gradients.down.push_back(like(shard.down.view()));
        if (has_bias) {
          held.up_bias.push_back(shard.up_bias.view());
          held.down_bias.push_back(made.down_bias[static_cast<std::size_t>(expert)].view());
          gradients.up_bias.push_back(like(shard.up_bias.view()));
          gradients.down_bias.push_back(like(held.down_bias.back()));
        }
      }
      experts_.push_back(std::move(held));
      gradients_.push_back(std::move(gradients));
    }
  }
  [[nodiscard]] std::span<const DeviceExperts> experts() const { return experts_; }
  [[nodiscard]] std::span<const DeviceGradients> gradients() const { return gradients_; }
  [[nodiscard]] const std::vector<Block>& sums() const { return sums_; }

 private:
  std::vector<Shard> shards_;
  std::vector<Block> sums_;
  std::vector<DeviceExperts> experts_;
  std::vector<DeviceGradients> gradients_;
};

}  // namespace

Block::Block(std::int64_t rows, std::int64_t columns, DType type)
    : rows_(rows),
      columns_(columns),
      type_(type),
      bytes_(static_cast<std::size_t>(rows * columns * kernels::size_of(type)), std::byte{0xFF}) {}

Block Block::random(std::uint64_t seed, std::int64_t rows, std::int64_t columns, DType type,
                    double scale) {
  Random random(seed, 9);
  Block made(rows, columns, type);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const auto value = static_cast<float>(random.normal() * scale);
      made.set(r, c, static_cast<double>(kernels::from_bfloat16(kernels::to_bfloat16(value))));
    }
  }
  return made;
}

kernels::MatrixView Block::view() {
  return {bytes_.data(), rows_, columns_, columns_, type_};
}

kernels::ConstMatrixView Block::view() const {
  return {bytes_.data(), rows_, columns_, columns_, type_};
}

kernels::ConstMatrixView Block::rows(std::int64_t first, std::int64_t count) const {
  return {bytes_.data() + first * columns_ * kernels::size_of(type_), count, columns_, columns_,
          type_};
}

double Block::at(std::int64_t row, std::int64_t column) const {
  switch (type_) {
    case DType::kFloat64: return view().row<double>(row)[column];
    case DType::kFloat32: return static_cast<double>(view().row<float>(row)[column]);
    default:
      return static_cast<double>(kernels::from_bfloat16(view().row<std::uint16_t>(row)[column]));
  }
}

void Block::set(std::int64_t row, std::int64_t column, double value) {
  switch (type_) {
    case DType::kFloat64: view().row<double>(row)[column] = value; break;
    case DType::kFloat32: view().row<float>(row)[column] = static_cast<float>(value); break;
    default:
      view().row<std::uint16_t>(row)[column] = kernels::to_bfloat16(static_cast<float>(value));
      break;
  }
}

TrainingCase training_case(std::uint64_t seed, int num_devices, DType type,
                           kernels::Activation activation, bool copies, std::int64_t token_factor) {
  TrainingCase made;
  made.type = type;
  made.options.name = "layer 3";
  made.options.hidden = kHidden;
  made.options.intermediate = kIntermediate;
  made.options.num_experts = kNumExperts;
  made.options.activation = activation;
  made.options.exchange.poison_buffers = true;
  made.placement = placement::contiguous_placement(kNumExperts, num_devices);
  if (copies) {
    made.placement.experts_of_device.front().push_back(kNumExperts - 1);
    made.placement.experts_of_device.back().insert(made.placement.experts_of_device.back().begin(),
                                                   0);
  }
  const std::int64_t counts[] = {131, 0, 70, 9};
  made.offsets = {0};
  for (int rank = 0; rank < num_devices; ++rank) {
    made.offsets.push_back(made.offsets.back() + counts[rank % 4] * token_factor);
  }
  made.top_k = 3;
  const DType weight_type = type == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  made.weights = Block(made.num_tokens(), made.top_k, weight_type);
  make_routing(made, seed);
  made.x = Block::random(seed + 1, made.num_tokens(), kHidden, type, 1.0);
  made.grad_y = Block::random(seed + 2, made.num_tokens(), kHidden, type, 1.0);
  const std::int64_t pre = kIntermediate * kernels::pre_activations_per_hidden(activation);
  for (std::uint64_t expert = 0; expert < kNumExperts; ++expert) {
    made.up.push_back(Block::random(seed + 10 + expert, pre, kHidden, type, 0.3));
    made.down.push_back(Block::random(seed + 40 + expert, kHidden, kIntermediate, type, 0.3));
    if (activation != kernels::Activation::kSwiGlu) {
      made.up_bias.push_back(Block::random(seed + 70 + expert, 1, pre, type, 0.3));
      made.down_bias.push_back(Block::random(seed + 90 + expert, 1, kHidden, type, 0.3));
    }
  }
  return made;
}

TrainingOutcome run_training(const TrainingCase& made, const TrainingRun& run) {
  TrainingOptions options = made.options;
  options.intermediate /= run.groups.num_shards();
  TrainingLayer layer(options, made.placement, run.groups, run.execution, run.movement);
  layer.set_plan(run.plan);
  layer.set_run(run.layer_run);
  const HeldExperts held(made, run.groups, layer.local_devices());
  const std::int64_t first = run.first_token;
  const std::int64_t count = run.end_token - first;
  const auto picks = [&](const std::vector<std::int32_t>& all) {
    return std::span(all).subspan(static_cast<std::size_t>(first * made.top_k),
                                  static_cast<std::size_t>(count * made.top_k));
  };
  TrainingBatch batch;
  batch.x = made.x.rows(first, count);
  batch.routing = {count, made.top_k, picks(made.ids), {}, picks(made.devices)};
  batch.weights = made.weights.rows(first, count);
  if (run.groups.expert == nullptr) {
    batch.source_offsets = made.offsets;
  }
  TrainingOutcome outcome;
  outcome.y = Block(count, kHidden, made.type);
  outcome.grad_x = Block(count, kHidden, made.type);
  outcome.grad_weights = Block(count, made.top_k, made.weights.view().type);
  const auto state = layer.forward(batch, held.experts(), outcome.y.view(), run.hooks);
  layer.backward(*state, batch.x, made.grad_y.rows(first, count), held.experts(),
                 {outcome.grad_x.view(), outcome.grad_weights.view(), held.gradients()}, run.hooks);
  for (const Block& sum : held.sums()) {
    outcome.experts.push_back(sum.bytes());
  }
  return outcome;
}

TrainingOutcome run_alone(const TrainingCase& made, const kernels::Execution& execution) {
  return run_training(made, {{}, 0, made.num_tokens(), execution, nullptr, {}, {}, nullptr});
}

std::vector<TrainingOutcome> run_as_ranks(const TrainingCase& made) {
  std::vector<TrainingOutcome> outcomes(static_cast<std::size_t>(made.num_ranks()));
  comm::run_ranks(
      made.num_ranks(),
      [&](comm::Communicator& group) {
        const auto rank = static_cast<std::size_t>(group.rank());
        outcomes[rank] = run_training(made, {{&group, nullptr},
                                             made.offsets[rank],
                                             made.offsets[rank + 1],
                                             {},
                                             nullptr,
                                             {},
                                             {},
                                             nullptr});
      },
      std::chrono::seconds(60));
  return outcomes;
}

TrainingOutcome joined(const std::vector<TrainingOutcome>& ranks) {
  const auto join = [&](Block TrainingOutcome::*member) {
    std::int64_t rows = 0;
    for (const TrainingOutcome& rank : ranks) {
      rows += (rank.*member).view().rows;
    }
    const auto& like = (ranks.front().*member);
    Block all(rows, like.view().columns, like.view().type);
    std::int64_t next = 0;
    for (const TrainingOutcome& rank : ranks) {
      const auto& bytes = (rank.*member).bytes();
      if (!bytes.empty()) {
        std::memcpy(static_cast<std::byte*>(all.view().data) + next, bytes.data(), bytes.size());
      }
      next += std::ssize(bytes);
    }
    return all;
  };
  TrainingOutcome all;
  all.y = join(&TrainingOutcome::y);
  all.grad_x = join(&TrainingOutcome::grad_x);
  all.grad_weights = join(&TrainingOutcome::grad_weights);
  for (const TrainingOutcome& rank : ranks) {
    all.experts.insert(all.experts.end(), rank.experts.begin(), rank.experts.end());
  }
  return all;
}

std::string difference(const TrainingOutcome& a, const TrainingOutcome& b) {
  if (a.y.bytes() != b.y.bytes()) {
    return "y";
  }
  if (a.grad_x.bytes() != b.grad_x.bytes()) {
    return "dL/dx";
  }
  if (a.grad_weights.bytes() != b.grad_weights.bytes()) {
    return "dL/dw";
  }
  for (std::size_t i = 0; i < a.experts.size(); ++i) {
    if (a.experts.size() != b.experts.size() || a.experts[i] != b.experts[i]) {
      return "gradient " + std::to_string(i) + " of the experts";
    }
  }
  return {};
}

}  // namespace coterie::layer
