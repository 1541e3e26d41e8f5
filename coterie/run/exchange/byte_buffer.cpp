// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/byte_buffer.hpp"

#include <cstring>
#include <new>

namespace coterie::exchange {
namespace {
constexpr std::align_val_t kAlignment{64};
}

void ByteBuffer::Release::operator()(std::byte* data) const {
  ::operator delete[](data, kAlignment);
}

std::span<std::byte> ByteBuffer::resize(std::int64_t num_bytes, bool poison) {
  size_ = static_cast<std::size_t>(num_bytes);
  if (size_ > capacity_ || data_ == nullptr) {
    data_.reset();
    capacity_ = size_ + size_ / 8 + 64;
    data_.reset(static_cast<std::byte*>(::operator new[](capacity_, kAlignment)));
  }
  if (poison) {
    std::memset(data_.get(), 0xFF, capacity_);
  }
  return bytes();
}

kernels::MatrixView ByteBuffer::resize_rows(std::int64_t rows, std::int64_t columns,
                                            kernels::DType type, bool poison) {
  resize(rows * columns * kernels::size_of(type), poison);
  return {data_.get(), rows, columns, columns, type};
}

}  // namespace coterie::exchange
