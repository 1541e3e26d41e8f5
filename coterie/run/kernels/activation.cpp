// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/activation.hpp"

#include "coterie/base/error.hpp"

namespace coterie::kernels {

const char* name_of(Activation activation) noexcept {
  switch (activation) {
    case Activation::kSwiGlu: return "swiglu";
    case Activation::kGelu: return "gelu";
    case Activation::kGeluTanh: return "gelu_tanh";
  }
  return "unknown";
}

Activation parse_activation(std::string_view name, const std::string& source) {
  for (const Activation activation :
       {Activation::kSwiGlu, Activation::kGelu, Activation::kGeluTanh}) {
    if (name == name_of(activation)) {
      return activation;
    }
  }
  fail(ErrorCode::kBadInput, source, " is \"", name, "\"; expected swiglu, gelu or gelu_tanh");
}

}  // namespace coterie::kernels
