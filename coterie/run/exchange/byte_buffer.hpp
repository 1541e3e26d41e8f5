// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "coterie/run/kernels/kernels.hpp"

namespace coterie::exchange {

/// Memory that grows and never shrinks, so that a layer called again allocates nothing. Its content
/// after `resize` is unspecified; with `poison` it is all 0xFF, which is NaN in every float type.
/// Aligned to 64 bytes. Not thread-safe.
class ByteBuffer {
 public:
  /// Makes room for `num_bytes`; earlier content is lost.
  std::span<std::byte> resize(std::int64_t num_bytes, bool poison);
  /// As resize, seen as a matrix without gaps between its rows.
  kernels::MatrixView resize_rows(std::int64_t rows, std::int64_t columns, kernels::DType type,
                                  bool poison);
  /// The bytes asked for last.
  [[nodiscard]] std::span<std::byte> bytes() { return {data_.get(), size_}; }
  /// Bytes held.
  [[nodiscard]] std::size_t capacity() const { return capacity_; }

 private:
  struct Release {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte[], Release> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

/// The memory in which an exchange moves rows. Nothing in it outlives a batch, so that exchanges
/// that take turns, such as the layers of a model, may share it.
struct RowBuffers {
  ByteBuffer metadata_out;
  ByteBuffer metadata_in;
  ByteBuffer rows_out;
  ByteBuffer rows_in;
  ByteBuffer partials;
  ByteBuffer returned;

  /// Bytes held.
  [[nodiscard]] std::size_t capacity() const {
    return metadata_out.capacity() + metadata_in.capacity() + rows_out.capacity() +
           rows_in.capacity() + partials.capacity() + returned.capacity();
  }
};

}  // namespace coterie::exchange
