// SPDX-License-Identifier: Apache-2.0
// schedule_simulated [--out FILE.md]
#include <cstdio>
#include <string>

#include "bench/schedule_simulated/study.hpp"
#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"

int main(int argc, char** argv) {
  const std::string out = argc > 2 && std::string(argv[1]) == "--out" ? argv[2] : "";
  bool passed = true;
  try {
    std::vector<coterie::bench::Study> studies;
    for (const double contention : {0.0, 0.3}) {
      for (const auto& testbed : {coterie::bench::testbed_a(), coterie::bench::testbed_b()}) {
        studies.push_back(coterie::bench::run_study(testbed, contention));
      }
    }
    std::string text = report(studies, coterie::bench::run_large(), passed);
    text += passed ? "\nAll bars are met.\n" : "\nA BAR IS MISSED.\n";
    if (!out.empty()) {
      coterie::write_text_file(out, text);
    }
    std::fputs(text.c_str(), stdout);
  } catch (const coterie::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return coterie::exit_code_of(error.code());
  }
  return passed ? 0 : 1;
}
