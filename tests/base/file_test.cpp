// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/file.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <span>

#include "coterie/base/error.hpp"

namespace coterie {
namespace {

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(::testing::TempDir()) / ("file_test_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::size_t num_files() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder_), {}));
  }
  std::filesystem::path folder_;
};

TEST_F(FileTest, CommitMakesTheWholeFile) {
  const std::string large(3U << 20U, 'x');
  AtomicFile file(folder_ / "a");
  file.write("0123");
  file.write(large);
  file.overwrite(1, std::as_bytes(std::span("AB", 2)));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a"));
  file.commit();
  EXPECT_EQ(read_text_file(folder_ / "a"), "0AB3" + large);
  EXPECT_EQ(num_files(), 1U);
}

TEST_F(FileTest, WithoutCommitNothingStays) {
  write_text_file(folder_ / "a", "old");
  {
    AtomicFile file(folder_ / "a");
    file.write("new");
  }
  EXPECT_EQ(read_text_file(folder_ / "a"), "old");
  EXPECT_EQ(num_files(), 1U);
}

TEST_F(FileTest, ErrorsNameTheFile) {
  try {
    MappedFile file(folder_ / "absent");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_NE(std::string(error.what()).find("absent"), std::string::npos);
  }
  EXPECT_THROW(AtomicFile(folder_ / "no" / "such" / "folder"), Error);
  EXPECT_THROW(AtomicFile{folder_}, Error);
}

TEST_F(FileTest, FullDiskIsAnErrorAndLeavesNothing) {
  if (!std::filesystem::exists("/dev/full")) {
    GTEST_SKIP() << "no /dev/full here";
  }
  // A link to the always-full device stands in for a full disk.
  std::filesystem::create_symlink("/dev/full",
                                  folder_ / ("a.partial-" + std::to_string(::getpid())));
  EXPECT_THROW(
      {
        AtomicFile file(folder_ / "a");
        file.write("text");
        file.commit();
      },
      Error);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a"));
}

TEST_F(FileTest, LinksAreFollowedAndDevicesRefused) {
  write_text_file(folder_ / "target", "old");
  std::filesystem::create_symlink(folder_ / "target", folder_ / "link");
  write_text_file(folder_ / "link", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_text_file(folder_ / "target"), "new");
  std::filesystem::create_symlink("/dev/null", folder_ / "device");
  EXPECT_THROW(AtomicFile(folder_ / "device"), Error);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(FileTest, EmptyFileMapsToNoBytes) {
  write_text_file(folder_ / "a", "");
  EXPECT_TRUE(MappedFile(folder_ / "a").bytes().empty());
}

}  // namespace
}  // namespace coterie
