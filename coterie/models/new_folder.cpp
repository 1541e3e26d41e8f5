// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/new_folder.hpp"

#include <unistd.h>

#include <string>
#include <system_error>

#include "coterie/base/error.hpp"

namespace coterie::models {

namespace fs = std::filesystem;

NewFolder::NewFolder(const fs::path& place) : place_(place) {
  if (place_.filename().empty()) {  // "out/" names "out"
    place_ = place_.parent_path();
  }
  std::error_code error;
  if (fs::exists(place_, error)) {
    COTERIE_REQUIRE(fs::is_directory(place_) && fs::is_empty(place_), place_.string(),
                    ": is there already and not empty; nothing was written");
  }
  temporary_ = place_;
  temporary_ += ".partial-" + std::to_string(::getpid());
  fs::remove_all(temporary_, error);
  if (!fs::create_directory(temporary_, error)) {
    fail(ErrorCode::kIo, place_.string(),
         ": cannot create the folder: ", error ? error.message() : "it is there already");
  }
}

NewFolder::~NewFolder() {
  if (!temporary_.empty()) {
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
  }
}

void NewFolder::commit() {
  std::error_code error;
  fs::rename(temporary_, place_, error);
  if (error) {
    fail(ErrorCode::kIo, place_.string(), ": cannot create the folder: ", error.message());
  }
  temporary_.clear();
}

}  // namespace coterie::models
