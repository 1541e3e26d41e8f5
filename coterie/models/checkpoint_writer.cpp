// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/checkpoint_writer.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/base/json.hpp"

namespace coterie::models {
namespace {

namespace fs = std::filesystem;

std::uint64_t size_of(const OutgoingTensor& tensor) {
  const auto size = bytes_of(tensor.type, tensor.shape);
  COTERIE_CHECK(size.has_value(), "tensor ", tensor.name, ": shape ", format_shape(tensor.shape));
  return *size;
}

std::vector<const OutgoingTensor*> layout_order(std::span<const OutgoingTensor> tensors) {
  std::vector<const OutgoingTensor*> order;
  std::set<std::string> names;
  for (const OutgoingTensor& tensor : tensors) {
    COTERIE_REQUIRE(names.insert(tensor.name).second && tensor.name != "__metadata__",
                    "tensor name \"", tensor.name, "\" stands twice or is reserved");
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const OutgoingTensor* a, const OutgoingTensor* b) {
    return std::pair(bits_of(b->type), std::string_view(a->name)) <
           std::pair(bits_of(a->type), std::string_view(b->name));
  });
  return order;
}

std::string make_header(const std::vector<const OutgoingTensor*>& order,
                        const std::map<std::string, std::string>& metadata) {
  // Written by hand: an ordered JSON object takes quadratic time to fill.
  std::string text = "{";
  if (!metadata.empty()) {
    Json members = Json::object();
    for (const auto& [key, value] : metadata) {
      members[key] = value;
    }
    text += "\"__metadata__\":";
    text += members.dump();
  }
  std::uint64_t offset = 0;
  for (const OutgoingTensor* tensor : order) {
    const Json entry = {{"dtype", name_of(tensor->type)},
                        {"shape", tensor->shape},
                        {"data_offsets", {offset, offset + size_of(*tensor)}}};
    text += (text.size() == 1 ? "" : ",") + Json(tensor->name).dump() + ":" + entry.dump();
    offset += size_of(*tensor);
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

std::string shard_name(std::size_t index, std::size_t count) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name.data();
}

/// Consecutive tensors, at most `max_shard_bytes` together.
std::vector<std::span<const OutgoingTensor>> cut_shards(std::span<const OutgoingTensor> tensors,
                                                        std::uint64_t max_shard_bytes) {
  std::vector<std::span<const OutgoingTensor>> shards;
  std::size_t begin = 0;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t size = size_of(tensors[i]);
    if (i > begin && bytes + size > max_shard_bytes) {
      shards.push_back(tensors.subspan(begin, i - begin));
      begin = i;
      bytes = 0;
    }
    bytes += size;
  }
  shards.push_back(tensors.subspan(begin));
  return shards;
}

}  // namespace

OutgoingTensor unchanged(const Tensor& tensor) {
  return {tensor.name(), tensor.type(), tensor.shape(), [tensor](const ByteConsumer& consume) {
            consume(tensor.bytes());
            tensor.release();
          }};
}

void write_safetensors(const fs::path& path, std::span<const OutgoingTensor> tensors,
                       const std::map<std::string, std::string>& metadata, Progress& progress) {
  const auto order = layout_order(tensors);
  const std::string header = make_header(order, metadata);
  AtomicFile file(path);
  const std::uint64_t length = header.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(header);
  progress.begin("writing " + path.filename().string(), static_cast<std::int64_t>(order.size()));
  std::int64_t done = 0;
  for (const OutgoingTensor* tensor : order) {
    const std::uint64_t end = file.size() + size_of(*tensor);
    tensor->produce([&](std::span<const std::byte> bytes) { file.write(bytes); });
    COTERIE_CHECK(file.size() == end, path.string(), ": tensor ", tensor->name, " was given ",
                  file.size(), " bytes up to it, expected ", end);
    progress.update(++done);
  }
  progress.end();
  file.commit();
}

void write_checkpoint(const fs::path& folder, std::span<const OutgoingTensor> tensors,
                      std::uint64_t max_shard_bytes, Progress& progress) {
  const auto shards = cut_shards(tensors, max_shard_bytes);
  if (shards.size() == 1) {
    write_safetensors(folder / kSingleFileName, tensors, kPytorchMetadata, progress);
    return;
  }
  std::uint64_t total = 0;
  std::map<std::string, std::string> weight_map;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    for (const OutgoingTensor& tensor : shards[s]) {
      COTERIE_REQUIRE(weight_map.emplace(tensor.name, shard_name(s, shards.size())).second,
                      "tensor name \"", tensor.name, "\" stands twice");
      total += size_of(tensor);
    }
  }
  for (std::size_t s = 0; s < shards.size(); ++s) {
    write_safetensors(folder / shard_name(s, shards.size()), shards[s], kPytorchMetadata, progress);
  }
  std::string text = "{\n  \"metadata\": {\n    \"total_size\": " + std::to_string(total) +
                     "\n  },\n  \"weight_map\": {";
  const char* separator = "\n";
  for (const auto& [tensor, file] : weight_map) {
    text += separator + ("    " + Json(tensor).dump() + ": " + Json(file).dump());
    separator = ",\n";
  }
  write_text_file(folder / kIndexName, text + "\n  }\n}\n");
}

}  // namespace coterie::models
