// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/file.hpp"
#include "tests/plan/routing/tiny_trace.hpp"

namespace coterie::routing {
namespace {

using TraceFile = FolderTest;

std::vector<TinyShape> shapes() {
  return {{},
          {.num_tokens = 0},
          {.num_tokens = 1},
          {.has_weights = false},
          {.shared_tokens = false},
          {.num_experts = 300, .top_k = 17, .layers = {0}, .num_tokens = 301},
          {.num_experts = 1, .top_k = 1, .layers = {0, 1, 2}},
          {.has_weights = false, .shared_tokens = false}};
}

TEST_F(TraceFile, BinaryRoundTrip) {
  for (const TinyShape& shape : shapes()) {
    const auto trace = tiny_trace(shape);
    write_trace(folder_ / "t.bin", *trace);
    expect_equal(*trace, *open_binary_trace(folder_ / "t.bin"));
    expect_equal(*trace, *open_trace(folder_ / "t.bin"));
  }
}

TEST_F(TraceFile, JsonlRoundTrip) {
  for (const TinyShape& shape : shapes()) {
    const auto trace = tiny_trace(shape);
    write_jsonl_trace(folder_ / "t.jsonl", *trace);
    expect_equal(*trace, *read_jsonl_trace(folder_ / "t.jsonl"));
    expect_equal(*trace, *open_trace(folder_ / "t.jsonl"));
  }
}

std::unique_ptr<MemoryTrace> counted_trace() {
  TraceHeader header{.num_experts = 4, .top_k = 2, .layers = {0, 5}, .domains = {"d"}};
  header.shared_tokens = false;
  std::vector<LayerTrace> layers(2);
  const std::vector<std::uint16_t> ids = {0, 1, 0, 1, 2, 3, 1, kNoExpert};
  for (std::size_t i = 0; i < 2; ++i) {
    layers[i].layer = header.layers[i];
    layers[i].num_experts = 4;
    layers[i].top_k = 2;
  }
  layers[0].counts = make_expert_sets(ids, 2, 4);
  layers[1].ids = ids;
  layers[1].tokens = std::make_shared<const std::vector<TokenInfo>>(4);
  return std::make_unique<MemoryTrace>(header, layers, "counted");
}

TEST_F(TraceFile, CountedSetsRoundTrip) {
  const auto trace = counted_trace();
  write_trace(folder_ / "t.bin", *trace);
  expect_equal(*trace, *open_binary_trace(folder_ / "t.bin"));
  write_jsonl_trace(folder_ / "t.jsonl", *trace);
  expect_equal(*trace, *read_jsonl_trace(folder_ / "t.jsonl"));
}

TEST_F(TraceFile, PiecesOfAnySizeGiveTheSameTrace) {
  const TinyShape shape{.num_tokens = 257};
  const auto trace = tiny_trace(shape);
  for (const std::size_t piece : {1U, 7U, 64U, 257U}) {
    for (const std::size_t block : {1U, 10U, 256U, 1000U}) {
      TraceWriter writer(folder_ / "t.bin", trace->header(), block);
      for (std::size_t begin = 0; begin < shape.num_tokens; begin += piece) {
        const std::size_t rows = std::min(piece, shape.num_tokens - begin);
        for (std::size_t slot = 0; slot < 2; ++slot) {
          const LayerTrace layer = trace->layer(slot, true);
          if (slot == 0) {
            writer.add_tokens(std::span(*layer.tokens).subspan(begin, rows));
          }
          writer.add_rows(slot, std::span(layer.ids).subspan(begin * 2, rows * 2),
                          std::span(layer.weights).subspan(begin * 2, rows * 2));
        }
      }
      writer.commit();
      expect_equal(*trace, *open_binary_trace(folder_ / "t.bin"));
    }
  }
}

// The trace holds each real token once, for any batch (no buffer limit).
TEST_F(TraceFile, RowsEqualTokensForEveryBatch) {
  for (const std::size_t batch : {1, 2, 31, 32, 33, 255, 256, 257}) {
    const auto trace = tiny_trace({.layers = {0}, .num_tokens = batch});
    write_trace(folder_ / "t.bin", *trace);
    ASSERT_EQ(open_binary_trace(folder_ / "t.bin")->num_rows(0), batch);
  }
}

TEST_F(TraceFile, WithoutCommitNothingIsLeft) {
  {
    TraceWriter writer(folder_ / "t.bin", tiny_trace()->header());
    writer.add_tokens(std::vector<TokenInfo>(5));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(TraceFile, WriterRefusesBadRows) {
  const TraceHeader header = tiny_trace()->header();
  TraceWriter writer(folder_ / "t.bin", header);
  const std::vector<std::uint16_t> high = {0, 8};
  const std::vector<float> weights = {0.5F, 0.5F};
  expect_refused([&] { writer.add_rows(1, high, weights); }, {"layer 3", "row 0", "expert id 8"});
  const std::vector<std::uint16_t> good = {0, 7};
  expect_refused([&] { writer.add_rows(1, good); }, {"layer 3", "0 weights"});
  const std::vector<float> bad = {0.5F, std::numeric_limits<float>::quiet_NaN()};
  expect_refused([&] { writer.add_rows(1, good, bad); }, {"layer 3", "not finite"});
  const std::vector<TokenInfo> domain = {{0, 0, 2, 0}};
  expect_refused([&] { writer.add_tokens(domain); }, {"row 0", "domain 2 of 2"});
  writer.add_rows(1, good, weights);
  expect_refused([&] { writer.commit(); }, {"layer 3", "1 rows for 0 tokens"});
}

TEST_F(TraceFile, HeaderIsChecked) {
  const auto refused = [](auto change, const std::vector<std::string>& parts) {
    TraceHeader header = tiny_trace()->header();
    change(header);
    expect_refused([&] { check_trace_header(header, "f"); }, parts);
  };
  refused([](TraceHeader& h) { h.num_experts = 0; }, {"f: num_experts is 0"});
  refused([](TraceHeader& h) { h.num_experts = 65535; }, {"num_experts is 65535"});
  refused([](TraceHeader& h) { h.top_k = 9; }, {"top_k is 9", "[1, 8]"});
  refused([](TraceHeader& h) { h.layers = {3, 3}; }, {"layer 3 follows layer 3"});
  refused([](TraceHeader& h) { h.layers.clear(); }, {"no MoE layer"});
  refused([](TraceHeader& h) { h.domains = {"a", "a"}; }, {"\"a\" is named twice"});
  refused([](TraceHeader& h) { h.domains.clear(); }, {"0 domains"});
  refused([](TraceHeader& h) { h.model_fingerprint = "xyz"; }, {"xyz", "hexadecimal"});
}

TEST_F(TraceFile, MemoryTraceIsChecked) {
  const auto trace = tiny_trace();
  const auto with = [&](auto change) {
    std::vector<LayerTrace> layers = {trace->layer(0, true), trace->layer(1, true)};
    change(layers);
    return MemoryTrace(trace->header(), layers, "t");
  };
  with([](auto&) {});
  expect_refused([&] { with([](auto& l) { l[1].ids.pop_back(); }); }, {"layer 3", "25 ids"});
  expect_refused([&] { with([](auto& l) { l[1].ids[2] = 9; }); }, {"layer 3", "row 1", "id 9"});
  expect_refused([&] { with([](auto& l) { l[0].weights.clear(); }); }, {"layer 1", "0 weights"});
  expect_refused([&] { with([](auto& l) { l.pop_back(); }); }, {"1 layers"});
  expect_refused([&] { with([](auto& l) { std::swap(l[0], l[1]); }); }, {"layer 3 stands where"});
}

TEST_F(TraceFile, JoinPutsPartsOneAfterAnother) {
  std::vector<std::unique_ptr<Trace>> parts;
  parts.push_back(tiny_trace({}, 1));
  parts.push_back(tiny_trace({.layers = {3, 4}, .shared_tokens = false}, 2));
  const auto joined = join_traces(std::move(parts));
  EXPECT_EQ(joined->header().layers, (std::vector<std::int32_t>{1, 3, 4}));
  EXPECT_EQ(joined->header().domains.size(), 2U);
  EXPECT_EQ(joined->num_rows(0), 13U);
  EXPECT_EQ(joined->num_rows(1), 26U);
  EXPECT_EQ(joined->num_rows(2), 14U);
  const LayerTrace layer = joined->layer(1, true);
  const LayerTrace first = tiny_trace({}, 1)->layer(1, true);
  EXPECT_TRUE(std::equal(first.ids.begin(), first.ids.end(), layer.ids.begin()));
  EXPECT_EQ(layer.weights.size(), layer.ids.size());
  EXPECT_EQ((*layer.tokens)[13].sequence, 3U) << "sequences of the second part follow the first's";
  EXPECT_EQ((*layer.tokens)[13].position, 0U);
  write_trace(folder_ / "t.bin", *joined);
  expect_equal(*joined, *open_binary_trace(folder_ / "t.bin"));
}

TEST_F(TraceFile, TracesOfAnotherModelAreNotJoined) {
  const auto refused = [](auto change, const std::vector<std::string>& parts) {
    TraceHeader header = tiny_trace()->header();
    change(header);
    expect_refused([&] { check_same_model(tiny_trace()->header(), "a", header, "b"); }, parts);
  };
  refused([](TraceHeader& h) { h.model_fingerprint = "00fe"; },
          {"b: of another model than a", "model_fingerprint is 00fe, not 00ff"});
  refused([](TraceHeader& h) { h.num_experts = 16; }, {"num_experts is 16, not 8"});
  refused([](TraceHeader& h) { h.model_type = "mixtral"; }, {"mixtral"});
  TraceHeader unknown = tiny_trace()->header();
  unknown.model_fingerprint.clear();
  unknown.model_type.clear();
  EXPECT_NO_THROW(check_same_model(tiny_trace()->header(), "a", unknown, "b"));
}

TEST_F(TraceFile, UnwritablePlacesAreIoErrors) {
  const auto trace = tiny_trace();
  expect_refused([&] { write_trace(folder_ / "none" / "t.bin", *trace); }, {"none"},
                 ErrorCode::kIo);
  expect_refused([&] { open_trace(folder_ / "absent"); }, {"absent"}, ErrorCode::kIo);
}

}  // namespace
}  // namespace coterie::routing
