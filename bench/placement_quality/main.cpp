// SPDX-License-Identifier: Apache-2.0
// placement_quality [--data DIR] [--large SCRATCH_DIR] [--out FILE.md]
#include <cstdio>
#include <string>

#include "bench/placement_quality/report.hpp"
#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"

int main(int argc, char** argv) {
  std::string data;
  std::string scratch;
  std::string out;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    (flag == "--data" ? data : flag == "--large" ? scratch : out) = argv[i + 1];
  }
  if (data.empty() && scratch.empty()) {
    std::fputs("placement_quality [--data ROUTING_DIR] [--large SCRATCH_DIR] [--out FILE.md]\n",
               stderr);
    return 2;
  }
  bool passed = true;
  std::string text = "# placement_quality\n\n";
  try {
    text += data.empty() ? "" : coterie::bench::report_quality(data, passed);
    text += scratch.empty() ? "" : coterie::bench::report_large(scratch, passed);
    text += passed ? "\nAll bars are met.\n" : "\nA BAR IS MISSED.\n";
    if (!out.empty()) {
      coterie::write_text_file(out, text);
    }
  } catch (const coterie::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return coterie::exit_code_of(error.code());
  }
  std::fputs(text.c_str(), stdout);
  return passed ? 0 : 1;
}
