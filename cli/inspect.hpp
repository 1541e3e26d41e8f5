// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "coterie/base/json.hpp"
#include "coterie/base/log.hpp"

namespace coterie::cli {

/// What `inspect` found out about a path: the same facts for programs and for people.
struct Inspection {
  Json document;
  std::string text;
};

/// Lines "name      value" under a headline.
std::string list_facts(const std::string& headline,
                       const std::vector<std::pair<std::string, std::string>>& facts);

/// "13.4 MB"
std::string format_bytes(double bytes);

Inspection inspect_model(const std::filesystem::path& path);
Inspection inspect_trace(const std::filesystem::path& path, Progress& progress);
Inspection inspect_placement(const std::filesystem::path& path);

}  // namespace coterie::cli
