// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coterie/models/safetensors_file.hpp"

namespace coterie::models {

/// A tensor of a checkpoint: where it is and what it is. Refers to the Checkpoint it came from.
struct Tensor {
  const TensorInfo* info = nullptr;
  const SafetensorsFile* file = nullptr;

  [[nodiscard]] const std::string& name() const { return info->name; }
  [[nodiscard]] ElementType type() const { return info->type; }
  [[nodiscard]] const std::vector<std::int64_t>& shape() const { return info->shape; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return file->bytes(*info); }
  /// "FILE: tensor "NAME"" for messages.
  [[nodiscard]] std::string place() const;
  void release() const { file->release(*info); }
};

/// All tensors of a model: a folder with `model.safetensors`, or with
/// `model.safetensors.index.json` and the shards that it names, or one safetensors file.
///
/// The index has the last word for each tensor: a tensor that a shard holds but the index gives to
/// another shard, or does not name, is not part of the model; it is listed in `remarks()`.
/// Refused (kBadInput, naming the file and tensor): a shard that is missing or damaged, a tensor
/// that its shard does not hold, a folder with both a single file and an index of other files.
/// Thread-safe once made.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& model);

  /// In ascending order of name.
  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
  /// The tensor of that name, or null.
  [[nodiscard]] const Tensor* find(std::string_view name) const;
  /// Things that a user should hear about: stray tensors and files, a wrong total size.
  [[nodiscard]] const std::vector<std::string>& remarks() const { return remarks_; }
  [[nodiscard]] std::vector<std::filesystem::path> files() const;
  /// The folder or file that was opened.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  void open_index(const std::filesystem::path& index);

  std::filesystem::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  std::vector<Tensor> tensors_;
  std::vector<std::string> remarks_;
};

inline constexpr const char* kSingleFileName = "model.safetensors";
inline constexpr const char* kIndexName = "model.safetensors.index.json";

}  // namespace coterie::models
