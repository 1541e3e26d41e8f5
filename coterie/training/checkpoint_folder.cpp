// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/checkpoint_folder.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string>
#include <system_error>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/training/state_files.hpp"

namespace coterie::training {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr const char* kLatest = "latest";

std::string name_of_step(std::int64_t step) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "step-%08lld", static_cast<long long>(step));
  return name.data();
}

/// The step of a whole checkpoint's name; nothing for other names.
std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  std::int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto result = std::from_chars(name.data() + kPrefix.size(), end, step);
  return result.ec == std::errc() && result.ptr == end ? std::optional(step) : std::nullopt;
}

/// Removes a folder so that at no moment a part of it looks like a checkpoint.
void remove_folder(const fs::path& path) {
  fs::path doomed = path;
  doomed += ".removed";
  std::error_code error;
  fs::remove_all(doomed, error);
  fs::rename(path, doomed, error);
  if (error) {
    fail(ErrorCode::kIo, path.string(), ": cannot remove: ", error.message());
  }
  fs::remove_all(doomed, error);
}

}  // namespace

fs::path CheckpointFolder::path_of(std::int64_t step) const {
  return folder_ / name_of_step(step);
}

void CheckpointFolder::prepare(std::int64_t step) const {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) {
    fail(ErrorCode::kIo, folder_.string(), ": cannot make the folder: ", error.message());
  }
  std::vector<fs::path> leftovers;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    const bool is_ours = name.starts_with(kPrefix) || name.starts_with(kLatest);
    if (is_ours && (name.find(".partial-") != std::string::npos || name.ends_with(".removed"))) {
      leftovers.push_back(entry.path());
    }
  }
  for (const fs::path& path : leftovers) {
    fs::remove_all(path, error);
  }
  if (fs::exists(path_of(step))) {
    remove_folder(path_of(step));
  }
}

void CheckpointFolder::committed(std::int64_t step, std::int64_t keep) const {
  write_text_file(folder_ / kLatest, name_of_step(step) + "\n");
  std::vector<std::int64_t> all = steps();
  std::erase(all, step);
  while (keep > 0 && std::ssize(all) >= keep) {
    remove_folder(path_of(all.front()));
    all.erase(all.begin());
  }
}

std::vector<std::int64_t> CheckpointFolder::steps() const {
  std::vector<std::int64_t> steps;
  if (fs::is_directory(folder_)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
      if (const auto step = step_of(entry.path().filename().string())) {
        steps.push_back(*step);
      }
    }
  }
  std::ranges::sort(steps);
  return steps;
}

fs::path find_checkpoint(const fs::path& run_or_checkpoint) {
  if (fs::exists(run_or_checkpoint / kTrainerFile)) {
    return run_or_checkpoint;
  }
  COTERIE_REQUIRE(fs::is_directory(run_or_checkpoint), run_or_checkpoint.string(),
                  ": no such folder");
  const CheckpointFolder folder(run_or_checkpoint);
  const fs::path latest = run_or_checkpoint / "checkpoints" / kLatest;
  if (fs::exists(latest)) {
    std::string name = read_text_file(latest);
    name.erase(name.find_last_not_of(" \n") + 1);
    const fs::path path = latest.parent_path() / name;
    if (step_of(name) && fs::exists(path / kTrainerFile)) {
      return path;
    }
  }
  // Killed between the checkpoint and its name in `latest`, or between removal and renewal.
  const std::vector<std::int64_t> steps = folder.steps();
  COTERIE_REQUIRE(!steps.empty(), run_or_checkpoint.string(), ": holds no checkpoint (neither ",
                  kTrainerFile, " nor checkpoints/step-*)");
  return folder.path_of(steps.back());
}

}  // namespace coterie::training
