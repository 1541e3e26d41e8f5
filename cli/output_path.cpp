// SPDX-License-Identifier: Apache-2.0
#include "cli/output_path.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"

namespace coterie::cli {

void check_output(const std::filesystem::path& out,
                  const std::vector<std::filesystem::path>& inputs, const char* flag) {
  std::error_code ignored;
  const auto target = std::filesystem::weakly_canonical(out, ignored);
  for (const std::filesystem::path& input : inputs) {
    const auto source = std::filesystem::weakly_canonical(input, ignored);
    COTERIE_REQUIRE(target != source, flag, " ", out.string(), ": it is an input of this command");
    const auto [end, rest] = std::ranges::mismatch(source, target);
    COTERIE_REQUIRE(!std::filesystem::is_directory(source, ignored) || end != source.end(), flag,
                    " ", out.string(), ": it lies in the input folder ", input.string());
  }
}

}  // namespace coterie::cli
