// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "coterie/base/log.hpp"
#include "coterie/models/checkpoint.hpp"
#include "coterie/models/element_type.hpp"

namespace coterie::models {

/// Takes the next bytes of a tensor that is being written.
using ByteConsumer = std::function<void(std::span<const std::byte>)>;

/// A tensor to be written. `produce` hands its bytes over, in order, in as many pieces as it likes,
/// so that no tensor need be in memory whole.
struct OutgoingTensor {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<std::int64_t> shape;
  std::function<void(const ByteConsumer&)> produce;
};

/// The tensor as it stands in a checkpoint, byte for byte; its pages are released after writing.
OutgoingTensor unchanged(const Tensor& tensor);

/// What Python's libraries expect in a PyTorch checkpoint.
inline const std::map<std::string, std::string> kPytorchMetadata = {{"format", "pt"}};

/// Writes one safetensors file, whole or not at all (AtomicFile). Tensors are laid out by falling
/// element size, then name, so that all are aligned. Errors: kBadInput for a repeated name, kIo.
void write_safetensors(const std::filesystem::path& path, std::span<const OutgoingTensor> tensors,
                       const std::map<std::string, std::string>& metadata = kPytorchMetadata,
                       Progress& progress = NoProgress::instance());

inline constexpr std::uint64_t kMaxShardBytes = 5'000'000'000;

/// Writes `model.safetensors`, or, if the tensors need more than `max_shard_bytes`, shards of at
/// most that size (a larger tensor has its own shard) in the order given, and their index. The
/// folder must exist.
void write_checkpoint(const std::filesystem::path& folder, std::span<const OutgoingTensor> tensors,
                      std::uint64_t max_shard_bytes = kMaxShardBytes,
                      Progress& progress = NoProgress::instance());

}  // namespace coterie::models
