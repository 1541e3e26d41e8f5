// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coterie/base/file.hpp"
#include "coterie/models/element_type.hpp"

namespace coterie::models {

/// One tensor of a safetensors file, row-major, little-endian.
struct TensorInfo {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;     ///< of the first byte, from the start of the file
  std::uint64_t num_bytes = 0;  ///< equals the product of shape and element size
};

/// A safetensors file, mapped and checked whole when it is opened, so that damage is met before any
/// tensor is used: the header (length, JSON, no repeated name), each tensor's type, shape and
/// offsets, that the tensors cover the data without gap, overlap, or bytes left over, that the file
/// is neither cut nor longer, and that each tensor is aligned to its elements. Damage is
/// ErrorCode::kBadInput naming file, tensor, expected and real value. Thread-safe once made.
/// Format: u64 little-endian header length, JSON header, data.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// In ascending order of name.
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// The tensor of that name, or null.
  [[nodiscard]] const TensorInfo* find(std::string_view name) const;
  [[nodiscard]] std::span<const std::byte> bytes(const TensorInfo& tensor) const;
  /// The header's `__metadata__`.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  /// The tensor's bytes need not stay in memory (they can be read again).
  void release(const TensorInfo& tensor) const;

 private:
  MappedFile file_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// The format's own limit on the header.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

}  // namespace coterie::models
