// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "coterie/base/error.hpp"

namespace coterie {
namespace {

constexpr std::size_t kWriteBuffer = std::size_t{1} << 20U;

[[noreturn]] void fail_io(const std::filesystem::path& path, std::string_view doing) {
  const int reason = errno;
  fail(ErrorCode::kIo, path.string(), ": cannot ", doing, ": ", std::strerror(reason));
}

void write_all(int descriptor, const char* data, std::size_t size,
               const std::filesystem::path& path) {
  while (size > 0) {
    const ssize_t written = ::write(descriptor, data, size);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      fail_io(path, "write");
    }
    data += written;
    size -= static_cast<std::size_t>(written);
  }
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // A pipe without a writer would block here; it is refused below. Regular files ignore the flag.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    fail_io(path, "open");
  }
  struct stat status {};
  const bool known = ::fstat(descriptor, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    fail(ErrorCode::kIo, path.string(), ": cannot open: not a regular file");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ > 0) {
    void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (mapped == MAP_FAILED) {
      ::close(descriptor);
      fail_io(path, "map");
    }
    data_ = static_cast<const std::byte*>(mapped);
  }
  ::close(descriptor);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

void MappedFile::release(std::size_t offset, std::size_t length) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t begin = (offset + page - 1) / page * page;
  const std::size_t end = std::min(offset + length, size_) / page * page;
  if (begin < end) {
    ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
  }
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code ignored;
  if (std::filesystem::is_symlink(path_, ignored)) {
    // The file behind a link is replaced, not the link.
    path_ = std::filesystem::weakly_canonical(path_, ignored);
  }
  const auto status = std::filesystem::status(path_, ignored);
  if (std::filesystem::is_directory(status)) {
    fail(ErrorCode::kIo, path_.string(), ": cannot write: it is a folder");
  }
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    fail(ErrorCode::kIo, path_.string(), ": cannot write: not a regular file");
  }
  temporary_ = path_;
  temporary_ += ".partial-" + std::to_string(::getpid());
  // A file without a name until it is complete: whatever kills the process, nothing is left.
  const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  descriptor_ = ::open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {  // a file system that cannot do so
    is_named_ = true;
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  }
  if (descriptor_ < 0) {
    fail_io(path_, "create");
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    if (is_named_) {
      ::unlink(temporary_.c_str());
    }
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  size_ += bytes.size();
  if (buffer_.size() + bytes.size() < kWriteBuffer) {
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return;
  }
  flush();
  write_all(descriptor_, reinterpret_cast<const char*>(bytes.data()), bytes.size(), path_);
}

void AtomicFile::flush() {
  write_all(descriptor_, buffer_.data(), buffer_.size(), path_);
  buffer_.clear();
}

void AtomicFile::overwrite(std::uint64_t offset, std::span<const std::byte> bytes) {
  COTERIE_CHECK(offset + bytes.size() <= size_, path_.string(), ": overwrite past the end");
  flush();
  const char* data = reinterpret_cast<const char*>(bytes.data());
  std::size_t left = bytes.size();
  while (left > 0) {
    const ssize_t written = ::pwrite(descriptor_, data, left, static_cast<off_t>(offset));
    if (written < 0 && errno != EINTR) {
      fail_io(path_, "write");
    }
    if (written > 0) {
      data += written;
      left -= static_cast<std::size_t>(written);
      offset += static_cast<std::uint64_t>(written);
    }
  }
}

void AtomicFile::commit() {
  flush();
  if (::fsync(descriptor_) != 0 && errno != EINVAL && errno != EROFS) {
    fail_io(path_, "write");
  }
  if (!is_named_) {
    give_name();
  }
  const int closing = std::exchange(descriptor_, -1);
  if (::close(closing) != 0) {
    ::unlink(temporary_.c_str());
    fail_io(path_, "write");
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary_.c_str());
    errno = reason;
    fail_io(path_, "create");
  }
}

void AtomicFile::give_name() {
  // A link cannot take the place of another file, a rename can.
  const std::string self = "/proc/self/fd/" + std::to_string(descriptor_);
  ::unlink(temporary_.c_str());
  if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) != 0) {
    fail_io(path_, "create");
  }
  is_named_ = true;
}

std::string read_text_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace coterie
