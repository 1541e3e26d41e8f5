// SPDX-License-Identifier: Apache-2.0
// fuzz_seeds FOLDER: writes the seed corpus of every target to FOLDER/TARGET/.
#include <cstdio>
#include <filesystem>
#include <string>

#include "coterie/base/file.hpp"
#include "tests/fuzz/fuzz_target.hpp"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
    return 2;
  }
  for (const coterie::fuzz::Target* target : coterie::fuzz::targets()) {
    const std::filesystem::path folder = std::filesystem::path(argv[1]) / target->name;
    std::filesystem::create_directories(folder);
    int number = 0;
    for (const std::string& seed : target->seeds()) {
      coterie::write_text_file(folder / ("seed" + std::to_string(number++)), seed);
    }
  }
  return 0;
}
