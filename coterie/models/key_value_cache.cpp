// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/key_value_cache.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"

namespace coterie::models {

std::uint64_t LayerCache::num_bytes() const {
  return static_cast<std::uint64_t>(room_ * shape_.num_heads *
                                    (shape_.key_width + shape_.value_width)) *
         sizeof(float);
}

void LayerCache::reserve(std::int64_t num_tokens) {
  if (num_tokens <= room_) {
    return;
  }
  const std::int64_t wanted = std::max(num_tokens, std::min(2 * room_, room_ + 4096));
  const std::int64_t room = (wanted + kStep - 1) / kStep * kStep;
  const at::Tensor keys = at::zeros({shape_.num_heads, room, shape_.key_width}, at::kFloat);
  const at::Tensor values = at::zeros({shape_.num_heads, shape_.value_width, room}, at::kFloat);
  if (length_ > 0) {
    keys.slice(1, 0, length_).copy_(keys_.slice(1, 0, length_));
    values.slice(2, 0, length_).copy_(values_.slice(2, 0, length_));
  }
  keys_ = keys;
  values_ = values;
  room_ = room;
}

void LayerCache::append(const at::Tensor& keys, const at::Tensor& values) {
  const std::int64_t T = keys.size(0);
  COTERIE_CHECK(values.size(0) == T && keys.size(1) == shape_.num_heads &&
                    keys.size(2) == shape_.key_width && values.size(2) == shape_.value_width,
                "keys and values of another shape");
  reserve(length_ + T);
  keys_.slice(1, length_, length_ + T).copy_(keys.transpose(0, 1));
  values_.slice(2, length_, length_ + T).copy_(values.permute({1, 2, 0}));
  length_ += T;
}

void LayerCache::truncate(std::int64_t length) {
  COTERIE_CHECK(length >= 0, "length ", length);
  length_ = std::min(length_, length);
}

kernels::ConstMatrixView LayerCache::keys(std::int64_t head, std::int64_t first,
                                          std::int64_t num_tokens) const {
  const float* data = keys_.const_data_ptr<float>() + (head * room_ + first) * shape_.key_width;
  return {data, num_tokens, shape_.key_width, shape_.key_width, kernels::DType::kFloat32};
}

kernels::ConstMatrixView LayerCache::values(std::int64_t head, std::int64_t first,
                                            std::int64_t num_tokens) const {
  const float* data = values_.const_data_ptr<float>() + head * shape_.value_width * room_ + first;
  return {data, shape_.value_width, num_tokens, room_, kernels::DType::kFloat32};
}

at::Tensor LayerCache::all_keys() const {
  return keys_.slice(1, 0, length_);
}

at::Tensor LayerCache::all_values() const {
  return values_.slice(2, 0, length_).transpose(1, 2);
}

std::int64_t KeyValueCache::length() const {
  std::int64_t length = layers_.empty() ? 0 : layers_.front().length();
  for (const LayerCache& layer : layers_) {
    length = std::min(length, layer.length());
  }
  return length;
}

std::uint64_t KeyValueCache::num_bytes() const {
  std::uint64_t bytes = 0;
  for (const LayerCache& layer : layers_) {
    bytes += layer.num_bytes();
  }
  return bytes;
}

void KeyValueCache::truncate(std::int64_t length) {
  for (LayerCache& layer : layers_) {
    layer.truncate(length);
  }
}

}  // namespace coterie::models
