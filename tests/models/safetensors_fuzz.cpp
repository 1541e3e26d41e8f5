// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>

#include "coterie/models/safetensors_file.hpp"
#include "tests/fuzz/fuzz_target.hpp"

namespace coterie::fuzz {
namespace {

void read(std::string_view bytes) {
  const models::SafetensorsFile file(file_of(bytes));
  unsigned sum = 0;
  for (const models::TensorInfo& tensor : file.tensors()) {
    for (const std::byte byte : file.bytes(tensor)) {  // touches what the header promises
      sum += static_cast<unsigned>(byte);
    }
    file.release(tensor);
  }
  static_cast<void>(sum);
}

std::string file_with(std::string header, std::size_t data_bytes) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(data_bytes, '\1');
}

std::vector<std::string> seeds() {
  return {
      file_with(
          R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],)"
          R"("data_offsets":[0,24]},"b.c":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})",
          32),
      file_with(R"({"x":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                R"("y":{"dtype":"U8","shape":[0,5],"data_offsets":[8,8]}})",
                8),
      file_with(R"({"__metadata__":{"k":"v"}})", 0), file_with("{}", 0)};
}

}  // namespace

const Target kSafetensors = {"safetensors", read, seeds};

}  // namespace coterie::fuzz
