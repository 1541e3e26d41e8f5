// SPDX-License-Identifier: Apache-2.0
#include "cli/inspect.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>

#include "cli/commands.hpp"
#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"

namespace coterie::cli {
namespace {

constexpr const char* kFooter =
    "PATH is a model folder, a routing trace of any kind that `place` reads, or a placement file;\n"
    "which of them is told by its content. Damage is reported with exit code 2.\n"
    "\n"
    "Examples:\n"
    "  coterie inspect MODEL_DIR\n"
    "  coterie inspect trace.bin --json\n"
    "  coterie inspect placement.json";

/// A JSON document that says it is a placement, or that is one object with placement's layers.
bool looks_like_placement(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes().first(std::min<std::size_t>(file.bytes().size(), 400));
  const std::string_view start(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t first = start.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && start[first] == '{' &&
         (start.find("coterie-placement") != std::string_view::npos || path.extension() == ".json");
}

void run_inspect(const std::filesystem::path& path, Console& console) {
  COTERIE_REQUIRE(std::filesystem::exists(path), path.string(), ": no such file or folder");
  Inspection found;
  if (std::filesystem::is_directory(path) || path.extension() == ".safetensors") {
    found = inspect_model(path);
  } else if (looks_like_placement(path)) {
    found = inspect_placement(path);
  } else {
    found = inspect_trace(path, console);
  }
  console.print(found.text);
  console.emit(found.document);
}

}  // namespace

std::string list_facts(const std::string& headline,
                       const std::vector<std::pair<std::string, std::string>>& facts) {
  std::size_t width = 0;
  for (const auto& [name, value] : facts) {
    width = std::max(width, name.size());
  }
  std::string text = headline + "\n";
  for (const auto& [name, value] : facts) {
    text += "  " + name + std::string(width + 2 - name.size(), ' ') + value + "\n";
  }
  return text;
}

std::string format_bytes(double bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
  return text.data();
}

void add_inspect(CLI::App& app, Console& console) {
  auto path = std::make_shared<std::filesystem::path>();
  CLI::App* command =
      app.add_subcommand("inspect", "say what a model, a trace or a placement file holds");
  command->footer(kFooter);
  command->add_option("PATH", *path, "model folder, trace file or placement file")->required();
  add_shared_flags(*command, console);
  command->callback([path, &console] { run_inspect(*path, console); });
}

}  // namespace coterie::cli
