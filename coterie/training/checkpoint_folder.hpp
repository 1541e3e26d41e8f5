// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace coterie::training {

/// The checkpoints of a run: `OUT/checkpoints/step-00000100` and so on, each a folder that appeared
/// whole, and the file `OUT/checkpoints/latest` with the name of the newest. Names with
/// `.partial-` or `.removed` there are left over from a process that was killed. For one process
/// (rank 0) to write; reading is safe at any time.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(const std::filesystem::path& run) : folder_(run / "checkpoints") {}

  /// Where the checkpoint after `step` steps is or will be.
  [[nodiscard]] std::filesystem::path path_of(std::int64_t step) const;
  /// Makes the folder and removes what a killed process left, and a checkpoint of this very step
  /// (a run that was resumed from an earlier one comes here again).
  void prepare(std::int64_t step) const;
  /// The checkpoint of `step` is in place: names it in `latest`, then removes the oldest ones until
  /// `keep` are left (0: keeps all).
  void committed(std::int64_t step, std::int64_t keep) const;
  /// Steps of all checkpoints, ascending.
  [[nodiscard]] std::vector<std::int64_t> steps() const;

 private:
  std::filesystem::path folder_;
};

/// The checkpoint that a user means: a run's folder means its newest checkpoint, a checkpoint
/// itself. kBadInput if there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& run_or_checkpoint);

}  // namespace coterie::training
