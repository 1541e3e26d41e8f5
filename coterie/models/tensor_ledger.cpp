// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/tensor_ledger.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"

namespace coterie::models {

const Tensor& TensorLedger::take_any(const std::string& name, std::span<const std::int64_t> shape) {
  const Tensor* tensor = checkpoint_.find(name);
  COTERIE_REQUIRE(tensor != nullptr, checkpoint_.path().string(), ": tensor \"", name,
                  "\" of shape ", format_shape(shape), " is missing");
  COTERIE_REQUIRE(std::ranges::equal(tensor->shape(), shape), tensor->place(), ": shape ",
                  format_shape(tensor->shape()), ", config.json needs ", format_shape(shape));
  taken_.insert(name);
  return *tensor;
}

const Tensor& TensorLedger::take(const std::string& name, std::span<const std::int64_t> shape) {
  const Tensor& tensor = take_any(name, shape);
  const ElementType type = tensor.type();
  if (type != ElementType::kF32 && type != ElementType::kBF16 && type != ElementType::kF16) {
    fail(ErrorCode::kUnsupported, tensor.place(), ": type ", name_of(type),
         " is not supported here; F32, BF16 and F16 are");
  }
  return tensor;
}

const Tensor& TensorLedger::take_as(const std::string& name, std::span<const std::int64_t> shape,
                                    ElementType type) {
  const Tensor& tensor = take_any(name, shape);
  if (tensor.type() != type) {
    fail(ErrorCode::kUnsupported, tensor.place(), ": type ", name_of(tensor.type()), ", not ",
         name_of(type));
  }
  return tensor;
}

std::optional<ElementType> TensorLedger::type_of(const std::string& name) const {
  const Tensor* tensor = checkpoint_.find(name);
  return tensor == nullptr ? std::nullopt : std::optional(tensor->type());
}

std::string TensorLedger::place(const std::string& name) const {
  return checkpoint_.find(name)->place();
}

void TensorLedger::pass_over_prefix(const std::string& prefix) {
  for (const Tensor& tensor : checkpoint_.tensors()) {
    if (tensor.name().starts_with(prefix)) {
      taken_.insert(tensor.name());
    }
  }
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
