// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "cli/console.hpp"

namespace coterie::cli {

/// A subcommand declares itself: a name, what it does, its flags, and the work as callback. The
/// work throws coterie::Error; main() turns it into a message and an exit code.
using AddCommand = void (*)(CLI::App& app, Console& console);

#define COTERIE_COMMAND(name) void add_##name(CLI::App& app, Console& console);
#include "cli/command_table.inc"
#undef COTERIE_COMMAND

/// Flags that every command has.
void add_shared_flags(CLI::App& command, Console& console);

}  // namespace coterie::cli
