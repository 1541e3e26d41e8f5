// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace coterie::models {

/// A folder that appears whole or not at all: it is filled under another name beside its place, and
/// `commit()` renames it. Without commit() it is removed. kBadInput if the place is taken by
/// something that is not an empty folder; kIo, naming the folder, if it cannot be made.
class NewFolder {
 public:
  explicit NewFolder(const std::filesystem::path& place);
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder();

  /// Where to write until commit().
  [[nodiscard]] const std::filesystem::path& path() const { return temporary_; }
  void commit();

 private:
  std::filesystem::path place_;
  std::filesystem::path temporary_;
};

}  // namespace coterie::models
