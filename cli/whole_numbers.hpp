// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace coterie::cli {

/// Lets every option of `app` and its commands that takes a whole number refuse what is none, what
/// is negative and what does not fit into 64 bits, naming flag and value. (By itself CLI11 wraps
/// -1 around where a number has no sign, cuts 10^30 down to the largest number, and takes 010 for
/// eight.) Call it when all commands are there.
void check_whole_numbers(CLI::App& app);

}  // namespace coterie::cli
