// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "coterie/run/kernels/kernels.hpp"

namespace coterie::models {

/// What attention keeps of a token in one layer: for each key head a key and a value, fp32.
struct CacheShape {
  std::int64_t num_heads = 0;    ///< key heads; 1 for latent attention
  std::int64_t key_width = 0;    ///< numbers a key
  std::int64_t value_width = 0;  ///< numbers a value

  bool operator==(const CacheShape&) const = default;
};

/// Keys and values of one sequence in one layer. Room grows by doubling, in steps of kStep tokens;
/// what lies behind the last token is finite, so that a product with weights of 0 may run over it.
/// Not thread-safe.
class LayerCache {
 public:
  static constexpr std::int64_t kStep = 64;  ///< tokens; room is a multiple of it

  explicit LayerCache(const CacheShape& shape) : shape_(shape) {}

  [[nodiscard]] const CacheShape& shape() const { return shape_; }
  [[nodiscard]] std::int64_t length() const { return length_; }  ///< tokens
  [[nodiscard]] std::int64_t room() const { return room_; }      ///< tokens
  [[nodiscard]] std::uint64_t num_bytes() const;

  /// Adds T tokens: keys [T, heads, key_width], values [T, heads, value_width], fp32, any strides.
  void append(const at::Tensor& keys, const at::Tensor& values);
  /// Forgets all tokens from `length` on.
  void truncate(std::int64_t length);

  /// Keys of one head from token `first` on: [num_tokens, key_width]; first + num_tokens <= room().
  [[nodiscard]] kernels::ConstMatrixView keys(std::int64_t head, std::int64_t first,
                                              std::int64_t num_tokens) const;
  /// Values of one head, a token a column: [value_width, num_tokens].
  [[nodiscard]] kernels::ConstMatrixView values(std::int64_t head, std::int64_t first,
                                                std::int64_t num_tokens) const;
  /// [heads, length, key_width] and [heads, length, value_width], views.
  [[nodiscard]] at::Tensor all_keys() const;
  [[nodiscard]] at::Tensor all_values() const;

 private:
  void reserve(std::int64_t num_tokens);

  CacheShape shape_;
  std::int64_t length_ = 0;
  std::int64_t room_ = 0;
  at::Tensor keys_;    // [heads, room, key_width]
  at::Tensor values_;  // [heads, value_width, room]
};

/// What a decoder remembers of one sequence: a LayerCache a layer. Made by Decoder::make_cache(),
/// filled by Decoder::extend(). Movable. Not thread-safe; different caches are independent.
class KeyValueCache {
 public:
  KeyValueCache() = default;
  KeyValueCache(const CacheShape& shape, std::int64_t num_layers)
      : layers_(static_cast<std::size_t>(num_layers), LayerCache(shape)) {}

  /// Tokens that all layers hold.
  [[nodiscard]] std::int64_t length() const;
  [[nodiscard]] std::uint64_t num_bytes() const;
  [[nodiscard]] std::int64_t num_layers() const { return std::ssize(layers_); }
  [[nodiscard]] LayerCache& layer(std::int64_t number) {
    return layers_[static_cast<std::size_t>(number)];
  }
  /// Forgets all tokens from `length` on, in every layer.
  void truncate(std::int64_t length);

 private:
  std::vector<LayerCache> layers_;
};

}  // namespace coterie::models
