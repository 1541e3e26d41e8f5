// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace coterie {

/// A file mapped into memory for reading. Errors (ErrorCode::kIo) name the file and the reason.
/// Thread-safe after construction. Moving keeps addresses valid.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Tells the system that these bytes will not be read again soon, so that they need not stay
  /// resident. A hint: reading them again stays right.
  void release(std::size_t offset, std::size_t length) const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// A file that appears whole or not at all: bytes go to a temporary file in the same folder, and
/// `commit()` renames it into place after it reached the disk. Without commit() the destructor
/// removes it. A link is followed; a folder, device or pipe is refused. Every failure (read-only folder, full disk) is ErrorCode::kIo and names the file.
/// Not thread-safe.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Bytes written so far.
  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// Overwrites bytes that were already written (a header whose counts are known last).
  void overwrite(std::uint64_t offset, std::span<const std::byte> bytes);
  void commit();

 private:
  void flush();
  void give_name();

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  bool is_named_ = false;  // as `temporary_`
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  std::string buffer_;
};

/// The whole file as text. ErrorCode::kIo names the file and the reason.
std::string read_text_file(const std::filesystem::path& path);

/// Writes a whole text file atomically.
void write_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace coterie
