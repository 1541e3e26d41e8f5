// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/safetensors_file.hpp"

#include <algorithm>
#include <cstring>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"

namespace coterie::models {
namespace {

/// Length of the JSON header, checked against the file.
std::uint64_t header_length(const MappedFile& file) {
  const std::string name = file.path().string();
  const std::uint64_t size = file.bytes().size();
  COTERIE_REQUIRE(size >= 8, name, ": truncated: a safetensors file begins with 8 bytes of header ",
                  "length, the file has ", size);
  std::uint64_t length = 0;
  std::memcpy(&length, file.bytes().data(), sizeof(length));
  COTERIE_REQUIRE(length <= kMaxHeaderBytes, name, ": header length ", length,
                  " exceeds the format's limit of ", kMaxHeaderBytes,
                  ": damaged, or no safetensors file");
  COTERIE_REQUIRE(length <= size - 8, name, ": truncated: the header needs ", 8 + length,
                  " bytes, the file has ", size);
  COTERIE_REQUIRE(length >= 2 && file.bytes()[8] == std::byte{'{'}, name,
                  ": the header does not begin with '{': damaged, or no safetensors file");
  return length;
}

std::map<std::string, std::string> read_metadata(const JsonReader& reader) {
  if (!reader.value().is_object()) {
    reader.refuse("an object of strings");
  }
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : reader.value().items()) {
    metadata[key] = reader.at(key).as_string();
  }
  return metadata;
}

/// One header entry; `offset` is left relative to the data.
TensorInfo read_entry(const std::string& name, const Json& value, const std::string& file) {
  const std::string place = file + ": tensor \"" + name + "\"";
  const JsonReader reader(value, place);
  TensorInfo tensor;
  tensor.name = name;
  const std::string type = reader.at("dtype").as_string();
  const auto known = element_type_named(type);
  COTERIE_REQUIRE(known.has_value(), place, ": unknown dtype \"", type, "\"");
  tensor.type = *known;
  tensor.shape = reader.at("shape").as_ints(0, std::numeric_limits<std::int64_t>::max());
  const auto expected = bytes_of(tensor.type, tensor.shape);
  COTERIE_REQUIRE(expected.has_value(), place, ": shape ", format_shape(tensor.shape), " of ", type,
                  " is no whole number of bytes below 2^64");
  const auto offsets =
      reader.at("data_offsets").as_ints(0, std::numeric_limits<std::int64_t>::max());
  COTERIE_REQUIRE(offsets.size() == 2 && offsets[0] <= offsets[1], place,
                  ": data_offsets must be [begin, end] with begin <= end, found ",
                  format_shape(offsets));
  tensor.offset = static_cast<std::uint64_t>(offsets[0]);
  tensor.num_bytes = static_cast<std::uint64_t>(offsets[1] - offsets[0]);
  COTERIE_REQUIRE(tensor.num_bytes == *expected, place, ": shape ", format_shape(tensor.shape),
                  " of ", type, " needs ", *expected, " bytes, data_offsets ",
                  format_shape(offsets), " give ", tensor.num_bytes);
  return tensor;
}

/// The tensors must cover the data from its first to its last byte, in some order, without gap or
/// overlap.
void check_coverage(std::vector<TensorInfo>& tensors, std::uint64_t header_end, std::uint64_t size,
                    const std::string& file) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.offset, a.num_bytes, a.name) < std::tie(b.offset, b.num_bytes, b.name);
  });
  std::uint64_t expected_size = header_end;
  const TensorInfo* last = nullptr;
  for (const TensorInfo& tensor : tensors) {
    const std::uint64_t end = header_end + tensor.offset + tensor.num_bytes;
    if (end > expected_size) {
      expected_size = end;
      last = &tensor;
    }
  }
  COTERIE_REQUIRE(expected_size <= size, file, ": truncated: tensor \"", last ? last->name : "",
                  "\" ends at byte ", expected_size, " (expected size), the file has ", size,
                  " bytes (real size)");
  std::uint64_t next = 0;
  const std::string* previous = nullptr;
  for (const TensorInfo& tensor : tensors) {
    COTERIE_REQUIRE(tensor.offset <= next, file, ": tensor \"", tensor.name, "\": data begins at ",
                    tensor.offset, ", expected ", next, ": the bytes between belong to no tensor");
    COTERIE_REQUIRE(tensor.offset == next, file, ": tensor \"", tensor.name, "\": data begins at ",
                    tensor.offset, ", inside tensor \"", previous ? *previous : "",
                    "\", which ends at ", next);
    next = tensor.offset + tensor.num_bytes;
    previous = &tensor.name;
  }
  COTERIE_REQUIRE(expected_size == size, file, ": ", size - expected_size,
                  " bytes after the last tensor: expected size ", expected_size, ", real size ",
                  size);
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const std::string name = path.string();
  const std::uint64_t length = header_length(file_);
  const std::string_view text(reinterpret_cast<const char*>(file_.bytes().data()) + 8,
                              static_cast<std::size_t>(length));
  const Json header = parse_json(text, name + " (header)");
  COTERIE_REQUIRE(header.is_object(), name, ": the header is no JSON object");
  for (const auto& [key, value] : header.items()) {
    if (key == "__metadata__") {
      metadata_ = read_metadata(JsonReader(value, name + " (header)", "/__metadata__"));
    } else {
      tensors_.push_back(read_entry(key, value, name));
    }
  }
  const std::uint64_t header_end = 8 + length;
  check_coverage(tensors_, header_end, file_.bytes().size(), name);
  for (TensorInfo& tensor : tensors_) {
    tensor.offset += header_end;
    const std::uint64_t alignment = std::max<std::uint64_t>(1, bits_of(tensor.type) / 8);
    COTERIE_REQUIRE(tensor.num_bytes == 0 || tensor.offset % alignment == 0, name, ": tensor \"",
                    tensor.name, "\": misaligned: its data begins at byte ", tensor.offset,
                    ", which no multiple of ", alignment, " bytes (", name_of(tensor.type),
                    ") reaches; write the file anew with a current safetensors");
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const TensorInfo& tensor, std::string_view n) { return tensor.name < n; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorInfo& tensor) const {
  return file_.bytes().subspan(static_cast<std::size_t>(tensor.offset),
                               static_cast<std::size_t>(tensor.num_bytes));
}

void SafetensorsFile::release(const TensorInfo& tensor) const {
  file_.release(static_cast<std::size_t>(tensor.offset),
                static_cast<std::size_t>(tensor.num_bytes));
}

}  // namespace coterie::models
