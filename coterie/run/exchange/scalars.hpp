// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace coterie::exchange {

/// One number an entry, such as routing weights: fp32, or fp64 where the rows are.
class Scalars {
 public:
  Scalars() = default;
  Scalars(std::int64_t count, kernels::DType type) { resize(count, type); }

  /// New numbers are 0, old ones stay as they are if the type does.
  void resize(std::int64_t count, kernels::DType type) {
    COTERIE_CHECK(type == kernels::DType::kFloat32 || type == kernels::DType::kFloat64,
                  "numbers of type ", static_cast<int>(type));
    type_ = type;
    bytes_.resize(static_cast<std::size_t>(count * kernels::size_of(type)));
  }
  [[nodiscard]] kernels::DType type() const { return type_; }
  [[nodiscard]] std::int64_t size() const {
    return static_cast<std::int64_t>(bytes_.size()) / kernels::size_of(type_);
  }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  [[nodiscard]] std::span<std::byte> bytes() { return bytes_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

  /// The numbers; T must be what type() says.
  template <typename T>
  [[nodiscard]] T* data() {
    return reinterpret_cast<T*>(bytes_.data());
  }
  template <typename T>
  [[nodiscard]] const T* data() const {
    return reinterpret_cast<const T*>(bytes_.data());
  }
  /// As a matrix of one column.
  [[nodiscard]] kernels::MatrixView view() { return {bytes_.data(), size(), 1, 1, type_}; }
  [[nodiscard]] kernels::ConstMatrixView view() const {
    return {bytes_.data(), size(), 1, 1, type_};
  }

  /// to[i] = from[index[i]].
  void gather(const Scalars& from, std::span<const std::int32_t> index) {
    gather(from.bytes(), from.type(), index);
  }
  /// As above, from numbers of `type` that lie one behind the other.
  void gather(std::span<const std::byte> from, kernels::DType type,
              std::span<const std::int32_t> index) {
    resize(std::ssize(index), type);
    if (type == kernels::DType::kFloat64) {
      gather_as<double>(from, index);
    } else {
      gather_as<float>(from, index);
    }
  }

 private:
  template <typename T>
  void gather_as(std::span<const std::byte> from, std::span<const std::int32_t> index) {
    const T* values = reinterpret_cast<const T*>(from.data());
    for (std::size_t i = 0; i < index.size(); ++i) {
      data<T>()[i] = values[index[i]];
    }
  }

  kernels::DType type_ = kernels::DType::kFloat32;
  std::vector<std::byte> bytes_;
};

}  // namespace coterie::exchange
