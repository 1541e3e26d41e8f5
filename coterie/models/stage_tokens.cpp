// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/stage_tokens.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"
#include "coterie/models/chunked_loss.hpp"
#include "coterie/models/whole_sequences.hpp"

namespace coterie::models {
namespace {

std::size_t num_sequences(const MicroBatch& batch) {
  return batch.sequence_offsets.empty() ? 0 : batch.sequence_offsets.size() - 1;
}

/// int64 [T] on the CPU: each token's position in its sequence.
at::Tensor positions_of(const MicroBatch& batch) {
  std::vector<at::Tensor> parts = {at::empty({0}, at::kLong)};
  for (std::size_t s = 0; s < num_sequences(batch); ++s) {
    parts.push_back(at::arange(batch.sequence_offsets[s + 1] - batch.sequence_offsets[s]));
  }
  return at::cat(parts);
}

/// int64 [T]: sequence number * max_positions + position.
at::Tensor numbers_of_tokens(const MicroBatch& batch, std::int64_t max_positions) {
  std::vector<at::Tensor> parts = {at::empty({0}, at::kLong)};
  for (std::size_t s = 0; s < num_sequences(batch); ++s) {
    const std::int64_t number =
        batch.sequence_numbers.empty() ? static_cast<std::int64_t>(s) : batch.sequence_numbers[s];
    const std::int64_t length = batch.sequence_offsets[s + 1] - batch.sequence_offsets[s];
    parts.push_back(at::arange(length) + number * max_positions);
  }
  return at::cat(parts);
}

/// Sequence bounds of tokens [begin, end): as many sequences, some empty or cut.
std::vector<std::int64_t> clipped(const std::vector<std::int64_t>& offsets, std::int64_t begin,
                                  std::int64_t end) {
  std::vector<std::int64_t> result;
  for (const std::int64_t offset : offsets) {
    result.push_back(std::clamp(offset, begin, end) - begin);
  }
  return result;
}

struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

RowRange range_of(const RowBlocks& blocks, int rank) {
  const std::int64_t begin = blocks.first(rank);
  return {begin, begin + blocks.num_rows[static_cast<std::size_t>(rank)]};
}

at::Tensor rows_of(const at::Tensor& all, const RowRange& rows, const at::Device& device) {
  return all.slice(0, rows.begin, rows.end).to(device).contiguous();
}

/// What gates need to know of tokens [begin, end).
gates::TokenBatch token_batch(const MicroBatch& batch, const RowRange& rows,
                              std::int64_t max_positions, const at::Device& device) {
  gates::TokenBatch made;
  made.sequence_offsets = clipped(batch.sequence_offsets, rows.begin, rows.end);
  made.token_ids = rows_of(numbers_of_tokens(batch, max_positions), rows, device);
  if (batch.is_real.defined()) {
    made.is_real = rows_of(batch.is_real, rows, device);
  }
  return made;
}

}  // namespace

RotaryTable RotaryTables::of(const ModelConfig& config, std::int64_t num_positions,
                             const TrainableOptions& options) {
  if (num_positions > num_positions_) {
    const RotaryTable table = make_rotary_table(config, num_positions);
    // A GPU rotates in fp32 and rounds once.
    const bool wide = options.device.is_cuda() && options.type == at::kBFloat16;
    const at::TensorOptions as = at::device(options.device).dtype(wide ? at::kFloat : options.type);
    longest_ = {table.cosines.to(as), table.sines.to(as)};
    num_positions_ = num_positions;
  }
  if (!longest_.cosines.defined()) {
    return make_rotary_table(config, 0);
  }
  return {longest_.cosines.narrow(0, 0, num_positions), longest_.sines.narrow(0, 0, num_positions)};
}

void check_micro_batch(const MicroBatch& batch, std::size_t index, const ModelConfig& config) {
  const std::vector<std::int64_t>& offsets = batch.sequence_offsets;
  const std::int64_t T = batch.token_ids.defined() ? batch.token_ids.numel() : 0;
  COTERIE_REQUIRE(batch.token_ids.defined() && batch.token_ids.scalar_type() == at::kLong &&
                      batch.token_ids.dim() == 1,
                  "micro-batch ", index, ": token_ids must be int64 [T]");
  COTERIE_REQUIRE(!offsets.empty() && offsets.front() == 0 && offsets.back() == T &&
                      std::ranges::is_sorted(offsets),
                  "micro-batch ", index, ": sequence_offsets must ascend from 0 to ", T);
  COTERIE_REQUIRE(
      batch.sequence_numbers.empty() || batch.sequence_numbers.size() + 1 == offsets.size(),
      "micro-batch ", index, ": ", batch.sequence_numbers.size(), " sequence_numbers for ",
      offsets.size() - 1, " sequences");
  for (std::size_t s = 0; s + 1 < offsets.size(); ++s) {
    COTERIE_REQUIRE(offsets[s + 1] - offsets[s] <= config.max_positions, "micro-batch ", index,
                    ", sequence ", s, ": ", offsets[s + 1] - offsets[s],
                    " tokens, the model allows ", config.max_positions);
  }
  const at::Tensor ids = batch.token_ids.to(at::kCPU).contiguous();
  const std::int64_t* id = ids.const_data_ptr<std::int64_t>();
  for (std::int64_t t = 0; t < T; ++t) {
    COTERIE_REQUIRE(id[t] >= 0 && id[t] < config.vocab_size, "micro-batch ", index, ", token ", t,
                    ": token id ", id[t], " is outside [0, ", config.vocab_size, ")");
  }
  if (batch.targets.defined()) {
    COTERIE_REQUIRE(batch.targets.sizes() == batch.token_ids.sizes() &&
                        batch.targets.scalar_type() == at::kLong,
                    "micro-batch ", index, ": targets must be int64 [", T, "]");
    const bool fits = T == 0 || (batch.targets.lt(config.vocab_size) &
                                 (batch.targets.ge(0) | batch.targets.eq(kNoTarget)))
                                    .all()
                                    .item<bool>();
    COTERIE_REQUIRE(fits, "micro-batch ", index, ": a target is neither -100 nor in [0, ",
                    config.vocab_size, ")");
  }
  COTERIE_REQUIRE(!batch.is_real.defined() || (batch.is_real.sizes() == batch.token_ids.sizes() &&
                                               batch.is_real.scalar_type() == at::kBool),
                  "micro-batch ", index, ": is_real must be bool [", T, "]");
}

at::Tensor targets_of(const MicroBatch& batch) {
  if (batch.targets.defined()) {
    return batch.targets.to(at::kCPU);
  }
  const at::Tensor ids = batch.token_ids.to(at::kCPU);
  at::Tensor targets = at::full_like(ids, kNoTarget);
  for (std::size_t s = 0; s < num_sequences(batch); ++s) {
    const std::int64_t begin = batch.sequence_offsets[s];
    const std::int64_t end = batch.sequence_offsets[s + 1];
    if (end - begin > 1) {
      targets.slice(0, begin, end - 1).copy_(ids.slice(0, begin + 1, end));
    }
  }
  if (batch.is_real.defined()) {  // padding neither predicts nor is predicted
    const at::Tensor real = batch.is_real.to(at::kCPU);
    const at::Tensor next_real = at::cat({real.slice(0, 1), at::zeros({1}, at::kBool)});
    targets.masked_fill_((real & next_real.slice(0, 0, real.numel())).logical_not(), kNoTarget);
  }
  return targets;
}

StepCounts count_step(std::span<const MicroBatch> batches, const parallel::Groups& groups) {
  comm::Communicator& stage = groups.stage();
  const std::int64_t mine = std::ssize(batches);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(stage.size()));
  stage.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(counts)),
                   comm::Purpose::kControl);
  for (std::size_t r = 0; r < counts.size(); ++r) {
    COTERIE_REQUIRE(counts[r] == counts[0], "rank 0 of the stage comes with ", counts[0],
                    " micro-batches, rank ", r, " with ", counts[r]);
  }
  StepCounts sum;
  if (groups.coordinates().model == 0) {
    for (const MicroBatch& batch : batches) {
      sum.num_targets += targets_of(batch).ge(0).sum().item<std::int64_t>();
      sum.num_tokens += batch.is_real.defined() ? batch.is_real.sum().item<std::int64_t>()
                                                : batch.token_ids.numel();
      for (std::size_t s = 0; s < num_sequences(batch); ++s) {
        const std::int64_t begin = batch.sequence_offsets[s];
        const std::int64_t end = batch.sequence_offsets[s + 1];
        const bool real = end > begin && (!batch.is_real.defined() ||
                                          batch.is_real.slice(0, begin, end).any().item<bool>());
        sum.num_sequences += real ? 1 : 0;
      }
    }
  }
  parallel::all_reduce(stage, {&sum, 3, parallel::SumType::kInt64}, comm::Purpose::kControl);
  return sum;
}

StageTokens stage_tokens(const MicroBatch& batch, const TrainableConfig& config,
                         const TrainableOptions& options, parallel::Groups& groups,
                         const StepCounts& counts, const StepPlace& place) {
  RotaryTables& tables = place.tables;
  comm::Communicator& model_group = groups.model();
  const std::int64_t T = batch.token_ids.numel();
  StageTokens tokens;
  tokens.shape.offsets = batch.sequence_offsets;
  const at::Tensor positions = positions_of(batch);
  tokens.shape.positions = positions.to(options.device);
  if (!config.is_gpt2()) {
    const std::int64_t longest = T == 0 ? 0 : positions.max().item<std::int64_t>() + 1;
    tokens.shape.rotary = tables.of(config.model, longest, options);
  }
  const auto complete = [&](gates::TokenBatch made) {
    made.seed = options.seed;
    made.step = place.step;
    made.training = place.training;
    made.num_step_sequences = counts.num_sequences;
    return made;
  };
  tokens.blocks = row_blocks(T, model_group.size());
  const RowRange mine = range_of(tokens.blocks, model_group.rank());
  tokens.token_ids = rows_of(batch.token_ids, mine, options.device);
  tokens.positions = rows_of(positions, mine, options.device);
  tokens.targets = rows_of(targets_of(batch), mine, options.device);
  const std::int64_t max_positions = config.model.max_positions;
  tokens.batch = complete(token_batch(batch, mine, max_positions, options.device));
  if (model_group.size() > 1) {
    tokens.whole_blocks = whole_sequence_blocks(batch.sequence_offsets, tokens.blocks);
    tokens.whole_batch = complete(token_batch(
        batch, range_of(tokens.whole_blocks, model_group.rank()), max_positions, options.device));
    tokens.batch.sum_shards = [&model_group](at::Tensor& sum) {
      sum_in_place(sum, model_group, comm::Purpose::kMetadata);
    };
  }
  return tokens;
}

}  // namespace coterie::models
