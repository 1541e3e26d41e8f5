// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/models/scratch_folder.hpp"

namespace coterie::models {
namespace {

std::vector<std::byte> bytes_of_outgoing(const OutgoingTensor& tensor) {
  std::vector<std::byte> bytes;
  tensor.produce([&](std::span<const std::byte> piece) {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
  });
  return bytes;
}

/// One tensor of every type, scalars and empty shapes among them.
std::vector<OutgoingTensor> one_of_each() {
  std::vector<OutgoingTensor> tensors;
  int seed = 1;
  for (int t = 0; t <= static_cast<int>(ElementType::kU64); ++t) {
    const auto type = static_cast<ElementType>(t);
    tensors.push_back(counted("t." + std::string(name_of(type)), type, {2, 4}, seed++));
  }
  tensors.push_back(counted("scalar", ElementType::kI64, {}, seed++));
  tensors.push_back(counted("empty", ElementType::kF32, {0, 7}, seed++));
  tensors.push_back(counted("odd", ElementType::kU8, {5}, seed++));
  tensors.push_back(counted("name with \"quotes\" \\ and \xc3\xa9", ElementType::kBF16, {3}, seed));
  return tensors;
}

void expect_same(const Checkpoint& checkpoint, const std::vector<OutgoingTensor>& tensors) {
  EXPECT_EQ(checkpoint.tensors().size(), tensors.size());
  for (const OutgoingTensor& expected : tensors) {
    const Tensor* found = checkpoint.find(expected.name);
    ASSERT_NE(found, nullptr) << expected.name;
    EXPECT_EQ(found->type(), expected.type) << expected.name;
    EXPECT_EQ(found->shape(), expected.shape) << expected.name;
    const auto bytes = found->bytes();
    EXPECT_TRUE(std::ranges::equal(bytes, bytes_of_outgoing(expected))) << expected.name;
  }
}

TEST(Checkpoint, EveryTensorComesBackBitForBit) {
  const ScratchFolder folder;
  const auto tensors = one_of_each();
  write_checkpoint(folder.path(), tensors);
  const Checkpoint checkpoint(folder.path());
  expect_same(checkpoint, tensors);
  EXPECT_EQ(checkpoint.files().size(), 1U);
  EXPECT_TRUE(checkpoint.remarks().empty());
  // load -> save -> load
  const ScratchFolder again;
  std::vector<OutgoingTensor> loaded;
  for (const Tensor& tensor : checkpoint.tensors()) {
    loaded.push_back(unchanged(tensor));
  }
  write_checkpoint(again.path(), loaded);
  expect_same(Checkpoint(again.path()), tensors);
  EXPECT_EQ(read_text_file(again / kSingleFileName), read_text_file(folder / kSingleFileName));
}

TEST(Checkpoint, ShardsKeepTheirLimitAndComeBack) {
  const auto tensors = one_of_each();
  for (const std::uint64_t limit : {1U, 16U, 40U, 100U}) {
    const ScratchFolder folder;
    write_checkpoint(folder.path(), tensors, limit);
    const Checkpoint checkpoint(folder.path());
    expect_same(checkpoint, tensors);
    EXPECT_GT(checkpoint.files().size(), 1U);
    EXPECT_TRUE(checkpoint.remarks().empty()) << checkpoint.remarks().front();
    for (const auto& path : checkpoint.files()) {
      const SafetensorsFile shard(path);
      std::uint64_t bytes = 0;
      for (const TensorInfo& tensor : shard.tensors()) {
        bytes += tensor.num_bytes;
      }
      const auto holds_data = [](const TensorInfo& tensor) { return tensor.num_bytes > 0; };
      EXPECT_TRUE(bytes <= limit || std::ranges::count_if(shard.tensors(), holds_data) == 1);
      EXPECT_EQ(shard.metadata(), kPytorchMetadata);
    }
  }
}

TEST(Checkpoint, MetadataWithoutTensorsIsAFile) {
  const ScratchFolder folder;
  write_safetensors(folder / kSingleFileName, {}, {{"format", "pt"}, {"note", "a \"b\""}});
  const SafetensorsFile file(folder / kSingleFileName);
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_EQ(file.metadata().at("note"), "a \"b\"");
  write_safetensors(folder / "bare.safetensors", {}, {});
  EXPECT_TRUE(SafetensorsFile(folder / "bare.safetensors").metadata().empty());
}

TEST(Checkpoint, ARepeatedNameIsNotWritten) {
  const ScratchFolder folder;
  const std::vector<OutgoingTensor> tensors = {counted("a", ElementType::kF32, {4}, 1),
                                               counted("a", ElementType::kF32, {4}, 2)};
  for (const std::uint64_t limit : {1U, 1000U}) {
    EXPECT_EQ(refusal_of([&] { write_checkpoint(folder.path(), tensors, limit); }).first,
              ErrorCode::kBadInput);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

TEST(Checkpoint, AFailedWriteLeavesNothing) {
  const ScratchFolder folder;
  std::vector<OutgoingTensor> tensors = {counted("a", ElementType::kF32, {4}, 1)};
  tensors.push_back({"b", ElementType::kF32, {4}, [](const ByteConsumer&) {
                       fail(ErrorCode::kIo, "the disk is full");
                     }});
  EXPECT_EQ(refusal_of([&] { write_checkpoint(folder.path(), tensors); }).first, ErrorCode::kIo);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace coterie::models
