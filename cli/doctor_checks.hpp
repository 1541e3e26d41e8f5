// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace coterie::cli {

/// What one look at the machine found.
struct DoctorCheck {
  enum class State { kOk, kWarn, kFail };
  std::string name;
  State state = State::kOk;
  std::string found;
  std::string hint;  ///< what to do about it; empty if all is well
};

/// "ok", "warn", "fail".
const char* name_of(DoctorCheck::State state) noexcept;

/// Looks at versions, processor, memory, launcher, GPUs, cache folder and mpirun, in this order.
/// Starts nvidia-smi and, unless this process is itself a rank, mpirun with two short processes.
std::vector<DoctorCheck> examine_machine();

}  // namespace coterie::cli
