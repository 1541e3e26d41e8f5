// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "coterie/base/file.hpp"
#include "coterie/base/json.hpp"
#include "tests/folders.hpp"
#include "tests/plan/routing/tiny_trace.hpp"

namespace coterie::routing {
namespace {

const std::filesystem::path kGolden = tests::source_dir() / "tests/golden";

/// Compares with a file of tests/golden; COTERIE_UPDATE_GOLDEN=1 writes it anew.
void expect_golden(const std::string& name, const std::string& content) {
  if (std::getenv("COTERIE_UPDATE_GOLDEN") != nullptr) {
    write_text_file(kGolden / name, content);
  }
  EXPECT_EQ(read_text_file(kGolden / name), content) << name;
}

std::unique_ptr<MemoryTrace> golden_trace() {
  return tiny_trace({.num_experts = 8, .top_k = 3, .layers = {0, 2}, .num_tokens = 64}, 42);
}

using Golden = FolderTest;

TEST_F(Golden, TraceFilesKeepTheirBytes) {
  write_jsonl_trace(folder_ / "t.jsonl", *golden_trace());
  expect_golden("trace.jsonl", read_text_file(folder_ / "t.jsonl"));
  write_trace(folder_ / "t.bin", *golden_trace());
  expect_golden("trace.coterie", read_text_file(folder_ / "t.bin"));
}

TEST_F(Golden, OldFilesStayReadable) {
  expect_equal(*golden_trace(), *open_trace(kGolden / "trace.jsonl"));
  expect_equal(*golden_trace(), *open_trace(kGolden / "trace.coterie"));
}

TEST_F(Golden, FiguresOfTheTrace) {
  Json all = Json::object();
  const auto trace = open_trace(kGolden / "trace.jsonl");
  const std::vector<std::int32_t> device_of = {0, 0, 0, 1, 1, 1, 2, 2};
  for (std::size_t slot = 0; slot < 2; ++slot) {
    const LayerTrace layer = trace->layer(slot);
    const ExpertSets sets = select_sets(layer, {.part = Part::kFit, .split = Split::kSequence});
    Json& figures = all["layer " + std::to_string(layer.layer)];
    figures["dropped"] = to_json(count_dropped(layer));
    figures["replicas"] = to_json(count_replicas(sets, device_of, 3));
    figures["bounds"] = to_json(replica_bounds(sets, even_device_sizes(8, 3)));
    const auto pairs = count_pairs(sets);
    for (std::size_t e = 0; e < pairs.rows(); ++e) {
      figures["pairs"].push_back(pairs.row(e));
    }
  }
  expect_golden("trace_figures.json", format_json(all));
}

}  // namespace
}  // namespace coterie::routing
