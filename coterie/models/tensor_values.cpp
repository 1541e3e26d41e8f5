// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/tensor_values.hpp"

#include "coterie/base/error.hpp"

namespace coterie::models {
namespace {

at::ScalarType scalar_type_of(ElementType type) {
  switch (type) {
    case ElementType::kF32: return at::kFloat;
    case ElementType::kBF16: return at::kBFloat16;
    case ElementType::kF16: return at::kHalf;
    case ElementType::kF8E4M3: return at::kFloat8_e4m3fn;
    default: fail(ErrorCode::kInternal, "no matrix type: ", name_of(type));
  }
}

/// The tensor where it lies in the file.
at::Tensor mapped(const Tensor& tensor) {
  void* data = const_cast<std::byte*>(tensor.bytes().data());  // mapped read-only, never written
  return at::from_blob(data, tensor.shape(), scalar_type_of(tensor.type()));
}

/// Each scale repeated over its block, cut to the matrix: along one axis.
at::Tensor spread(const at::Tensor& scales, std::int64_t axis, std::int64_t block,
                  std::int64_t size) {
  return scales.repeat_interleave(block, axis).slice(axis, 0, size);
}

}  // namespace

bool TensorValues::is_scaled(const TensorLedger& ledger, const std::string& name) const {
  return blocks_.has_value() && ledger.type_of(name) == ElementType::kF8E4M3;
}

const Tensor& TensorValues::take_scaled(TensorLedger& ledger, const std::string& name,
                                        std::initializer_list<std::int64_t> shape,
                                        const Tensor*& scales) const {
  const std::vector<std::int64_t> sizes(shape);
  if (sizes.size() != 2) {
    fail(ErrorCode::kUnsupported, ledger.place(name), ": only matrices can be in F8_E4M3 here");
  }
  const auto& blocks = *blocks_;
  const std::vector<std::int64_t> counts = {(sizes[0] + blocks[0] - 1) / blocks[0],
                                            (sizes[1] + blocks[1] - 1) / blocks[1]};
  scales = &ledger.take_as(name + "_scale_inv", counts, ElementType::kF32);
  return ledger.take_as(name, sizes, ElementType::kF8E4M3);
}

at::Tensor TensorValues::tensor(TensorLedger& ledger, const std::string& name,
                                std::initializer_list<std::int64_t> shape,
                                at::ScalarType type) const {
  if (is_scaled(ledger, name)) {
    const Tensor* scales = nullptr;
    const Tensor& tensor = take_scaled(ledger, name, shape, scales);
    const at::Tensor factor = spread(spread(mapped(*scales), 0, (*blocks_)[0], tensor.shape()[0]),
                                     1, (*blocks_)[1], tensor.shape()[1]);
    const at::Tensor result = (mapped(tensor).to(at::kFloat) * factor).to(type);
    tensor.release();
    return result;
  }
  const Tensor& tensor = ledger.take(name, shape);
  at::Tensor result = mapped(tensor);
  if (result.scalar_type() != type) {
    result = result.to(type);
    tensor.release();
  }
  return result;
}

void TensorValues::check(TensorLedger& ledger, const std::string& name,
                         std::initializer_list<std::int64_t> shape) const {
  if (is_scaled(ledger, name)) {
    const Tensor* scales = nullptr;
    take_scaled(ledger, name, shape, scales);
  } else {
    ledger.take(name, shape);
  }
}

void TensorValues::slices(TensorLedger& ledger, const std::string& name,
                          std::initializer_list<std::int64_t> shape,
                          const std::vector<std::int32_t>& wanted,
                          std::vector<at::Tensor>& matrices, at::ScalarType type) const {
  const at::Tensor all = mapped(ledger.take(name, shape));
  for (const std::int32_t expert : wanted) {
    matrices[static_cast<std::size_t>(expert)] = all[expert].to(type);
  }
}

}  // namespace coterie::models
