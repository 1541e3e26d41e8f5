// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/file.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
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
  // A limit on the size of files stands in for a full disk.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  EXPECT_THROW(write_text_file(folder_ / "a", std::string(10000, 'x')), Error);
  std::signal(SIGXFSZ, old_handler);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(num_files(), 0U);
}

TEST_F(FileTest, NothingHasANameBeforeItIsComplete) {
  AtomicFile file(folder_ / "a");
  file.write(std::string(3 << 20, 'x'));
  file.overwrite(0, std::as_bytes(std::span("y", 1)));
  if (num_files() != 0) {
    GTEST_SKIP() << "this file system has no files without names";
  }
  file.commit();
  EXPECT_EQ(num_files(), 1U);
  EXPECT_EQ(std::filesystem::file_size(folder_ / "a"), std::uintmax_t{3} << 20U);
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
