// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "coterie/models/models.hpp"

namespace coterie::cli {

/// --text FILE and --domain NAME=FILE, as every command that reads texts has them.
struct TextFlags {
  std::vector<std::string> texts;
  std::vector<std::string> domains;
};

void add_text_flags(CLI::App& command, TextFlags& flags);

/// The texts with their domains; kBadInput for a --domain of another form. May be empty.
std::vector<models::TextSource> text_sources(const TextFlags& flags);

}  // namespace coterie::cli
