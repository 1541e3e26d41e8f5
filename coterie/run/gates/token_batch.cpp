// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gates/token_batch.hpp"

#include "coterie/base/error.hpp"

namespace coterie::gates {
namespace {

void check_vector(const at::Tensor& tensor, at::ScalarType type, std::int64_t length,
                  const std::string& what) {
  if (!tensor.defined()) {
    return;
  }
  COTERIE_REQUIRE(tensor.dim() == 1 && tensor.size(0) == length, what, " has shape ",
                  tensor.sizes(), "; expected one entry for each of ", length, " tokens");
  COTERIE_REQUIRE(tensor.scalar_type() == type, what, " holds ", tensor.scalar_type(),
                  "; expected ", type);
}

}  // namespace

void check_token_batch(const TokenBatch& batch, std::int64_t hidden, const std::string& name) {
  COTERIE_REQUIRE(batch.x.defined() && batch.x.dim() == 2, name, ": tokens must be a matrix");
  COTERIE_REQUIRE(batch.x.size(1) == hidden, name, ": tokens have ", batch.x.size(1),
                  " numbers; expected hidden ", hidden);
  COTERIE_REQUIRE(at::isFloatingType(batch.x.scalar_type()), name, ": tokens hold ",
                  batch.x.scalar_type(), "; expected floating point numbers");
  const std::int64_t T = batch.num_tokens();
  check_vector(batch.token_ids, at::kLong, T, name + ": token_ids");
  check_vector(batch.is_real, at::kBool, T, name + ": is_real");
  const auto& offsets = batch.sequence_offsets;
  COTERIE_REQUIRE(offsets.empty() || (offsets.front() == 0 && offsets.back() == T), name,
                  ": sequence_offsets must go from 0 to the number of tokens, ", T);
  for (std::size_t s = 1; s < offsets.size(); ++s) {
    COTERIE_REQUIRE(offsets[s - 1] <= offsets[s], name, ": sequence_offsets[", s, "] is ",
                    offsets[s], ", less than the one before, ", offsets[s - 1]);
  }
  COTERIE_REQUIRE(batch.num_step_sequences >= 0, name, ": num_step_sequences is ",
                  batch.num_step_sequences);
}

void require_whole_sequences(const TokenBatch& batch, const std::string& what) {
  if (batch.causal_generation) {
    fail(ErrorCode::kUnsupported, what,
         " looks at all tokens of a sequence, so it cannot be used in causal generation, where "
         "later tokens are not there yet");
  }
  if (batch.sum_shards) {
    fail(ErrorCode::kUnsupported, what,
         " needs whole sequences, but they are cut up over ranks; give each rank whole sequences");
  }
}

}  // namespace coterie::gates
