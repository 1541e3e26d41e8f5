// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace coterie::kernels {

/// What stands between the two products of an expert. v is the first product, plus bias if there
/// is one.
enum class Activation : std::uint8_t {
  kSwiGlu,    ///< silu(gate) * up with silu(v) = v / (1 + exp(-v)); v = [gate | up]
  kGelu,      ///< v Phi(v) with Phi(v) = (1 + erf(v / sqrt 2)) / 2 (Hendrycks & Gimpel 2016)
  kGeluTanh,  ///< v (1 + tanh(sqrt(2 / pi) (v + 0.044715 v^3))) / 2, as GPT-2 has it ("gelu_new")
};

/// "swiglu", "gelu", "gelu_tanh".
const char* name_of(Activation activation) noexcept;

/// The activation of that name; kBadInput naming `source` and the names there are otherwise.
Activation parse_activation(std::string_view name, const std::string& source);

/// How many pre-activations one hidden element is made of: 2 for kSwiGlu, else 1.
constexpr std::int64_t pre_activations_per_hidden(Activation activation) noexcept {
  return activation == Activation::kSwiGlu ? 2 : 1;
}

}  // namespace coterie::kernels
