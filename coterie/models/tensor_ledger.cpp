// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/tensor_ledger.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"

namespace coterie::models {

const Tensor& TensorLedger::take(const std::string& name, std::span<const std::int64_t> shape) {
  const Tensor* tensor = checkpoint_.find(name);
  COTERIE_REQUIRE(tensor != nullptr, checkpoint_.path().string(), ": tensor \"", name,
                  "\" of shape ", format_shape(shape), " is missing");
  COTERIE_REQUIRE(std::ranges::equal(tensor->shape(), shape), tensor->place(), ": shape ",
                  format_shape(tensor->shape()), ", config.json needs ", format_shape(shape));
  const ElementType type = tensor->type();
  if (type != ElementType::kF32 && type != ElementType::kBF16 && type != ElementType::kF16) {
    fail(ErrorCode::kUnsupported, tensor->place(), ": type ", name_of(type),
         " is not supported here; F32, BF16 and F16 are");
  }
  taken_.insert(name);
  return *tensor;
}

std::string TensorLedger::existing(const std::vector<std::string>& names) const {
  for (const std::string& name : names) {
    if (has(name)) {
      return name;
    }
  }
  return names.front();
}

void TensorLedger::finish() const {
  std::string left;
  std::size_t count = 0;
  for (const Tensor& tensor : checkpoint_.tensors()) {
    // Old checkpoints hold the rotary frequencies, which follow from config.json.
    if (!taken_.contains(tensor.name()) && !tensor.name().ends_with(".rotary_emb.inv_freq")) {
      if (count < 3) {
        left += (left.empty() ? "" : ", ") + tensor.name();
      }
      ++count;
    }
  }
  COTERIE_REQUIRE(count == 0, checkpoint_.path().string(), ": ", count,
                  " tensors have no place in the model that config.json describes: ", left,
                  count > 3 ? ", ..." : "");
}

}  // namespace coterie::models
