// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coterie/run/gates/gates.hpp"

namespace coterie::gates {

/// normal(0, 1) fp64 of that shape, by seed.
at::Tensor random_values(at::IntArrayRef shape, std::uint64_t seed);

/// Sequences of those lengths of random fp64 tokens; token ids are 100, 101, ...
TokenBatch random_batch(const std::vector<std::int64_t>& lengths, std::int64_t hidden,
                        std::uint64_t seed);

/// Options of a small fp64 gate.
GateOptions small_gate(GateKind kind, std::int32_t num_experts = 8, std::int32_t top_k = 2);

/// Every kind of gate in every mode, small and fp64, with its losses on.
std::vector<GateOptions> every_gate();

/// "deepseek, groups 4 of ..." for messages: the options that differ from the defaults.
std::string describe(const GateOptions& options);

/// A gate with random parameters, bias included.
std::shared_ptr<Gate> random_gate(const GateOptions& options, std::uint64_t seed);

/// The tokens [begin, end) of sequences [first, last) as a batch of their own.
TokenBatch take_sequences(const TokenBatch& batch, std::int64_t first, std::int64_t last);

/// The same sequences, each with `count` padding tokens of large random numbers on the left.
TokenBatch pad_left(const TokenBatch& batch, std::int64_t count);

/// Rows of the real tokens.
at::Tensor real_rows(const TokenBatch& batch, const at::Tensor& rows);

/// Gives every parameter normal values of some size, so that nothing hides behind small weights.
void randomize(Gate& gate, std::uint64_t seed, double deviation = 0.5);

/// The largest difference between the gradients of `loss` by autograd and by central differences,
/// over all entries of all `inputs` (fp64 leaves that require gradients), divided by 1 + the
/// largest gradient.
double gradient_error(const std::vector<at::Tensor>& inputs,
                      const std::function<at::Tensor()>& loss);

/// A number in [-1, 1] for each entry, the same each time: sum(values * fixed) is a loss in which
/// every entry counts.
at::Tensor dot_with_fixed(const at::Tensor& values, std::uint64_t seed);

/// Largest absolute difference; 0 for empty tensors.
double max_difference(const at::Tensor& a, const at::Tensor& b);

/// Same shape, type and bits (NaN equals NaN of the same bits).
bool bit_equal(const at::Tensor& a, const at::Tensor& b);

}  // namespace coterie::gates
