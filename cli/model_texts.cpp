// SPDX-License-Identifier: Apache-2.0
#include "cli/model_texts.hpp"

#include <filesystem>

#include "coterie/base/error.hpp"

namespace coterie::cli {

void add_text_flags(CLI::App& command, TextFlags& flags) {
  command.add_option("--text", flags.texts, "UTF-8 text files");
  command.add_option("--domain", flags.domains, "NAME=FILE: a text of the domain NAME");
}

std::vector<models::TextSource> text_sources(const TextFlags& flags) {
  std::vector<models::TextSource> sources;
  for (const std::string& text : flags.texts) {
    sources.push_back({std::filesystem::path(text).stem().string(), text});
  }
  for (const std::string& domain : flags.domains) {
    const auto equals = domain.find('=');
    COTERIE_REQUIRE(equals != std::string::npos && equals > 0 && equals + 1 < domain.size(),
                    "--domain ", domain, ": expected NAME=FILE");
    sources.push_back({domain.substr(0, equals), domain.substr(equals + 1)});
  }
  return sources;
}

}  // namespace coterie::cli
