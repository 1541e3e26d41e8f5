// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/models/models.hpp"

namespace coterie::models {

/// A folder that lives as long as the test.
class ScratchFolder {
 public:
  ScratchFolder() {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("coterie-models-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  [[nodiscard]] std::filesystem::path operator/(const std::string& name) const {
    return path_ / name;
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// The bytes of a safetensors file with this header and so much data.
inline std::string safetensors_bytes(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(data_bytes, '\1');
}

/// What the call throws: code and message; the code is kInternal with an empty message if nothing.
template <typename Call>
std::pair<ErrorCode, std::string> refusal_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {ErrorCode::kInternal, ""};
}

/// A tensor whose bytes are counted up from `seed`.
inline OutgoingTensor counted(const std::string& name, ElementType type,
                              std::vector<std::int64_t> shape, int seed) {
  const std::size_t size = bytes_of(type, shape).value();
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>((i * 7 + static_cast<std::size_t>(seed)) & 0xFFU);
  }
  return {name, type, std::move(shape), [bytes](const ByteConsumer& consume) { consume(bytes); }};
}

}  // namespace coterie::models
