// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/error.hpp"
#include "coterie/run/kernels/kernels_cuda.hpp"

/// Names of GPU paths, for command lines and reports; built with or without CUDA.
namespace coterie::kernels::cuda {

const char* name_of(Path path) noexcept {
  switch (path) {
    case Path::kAutomatic: return "auto";
    case Path::kHopper: return "hopper";
    case Path::kGeneric: return "generic";
  }
  return "unknown";
}

Path parse_path(std::string_view name, const std::string& source) {
  for (const Path path : {Path::kAutomatic, Path::kHopper, Path::kGeneric}) {
    if (name == name_of(path) || (path == Path::kAutomatic && name == "automatic")) {
      return path;
    }
  }
  fail(ErrorCode::kBadInput, source, " is \"", name, "\"; expected auto, hopper or generic");
}

std::string to_string(const PathChoice& choice) {
  return std::string(name_of(choice.path)) + " kernels (" + choice.reason + ")";
}

}  // namespace coterie::kernels::cuda
