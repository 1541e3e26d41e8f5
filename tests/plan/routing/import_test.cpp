// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>

#include "coterie/base/file.hpp"
#include "tests/plan/routing/tiny_trace.hpp"

namespace coterie::routing {
namespace {

class Import : public FolderTest {
 protected:
  std::filesystem::path write(const std::string& name, std::string_view text) {
    write_text_file(folder_ / name, text);
    return folder_ / name;
  }
  std::unique_ptr<Trace> open(const std::string& name, std::string_view text,
                              const ImportOptions& options = {}) {
    return open_trace(write(name, text), options);
  }
  void refused(std::string_view text, const std::vector<std::string>& parts,
               const ImportOptions& options = {}) {
    const std::string what = expect_refused([&] { open("f", text, options); }, parts);
    EXPECT_NE(what.find((folder_ / "f").string()), std::string::npos) << what;
  }
};

std::vector<std::uint16_t> u16(std::initializer_list<int> ids) {
  std::vector<std::uint16_t> out;
  for (const int id : ids) {
    out.push_back(id < 0 ? kNoExpert : static_cast<std::uint16_t>(id));
  }
  return out;
}

// --- CSV of sets ---------------------------------------------------------------------------------

constexpr std::string_view kSets = "token_id,occurrences,x0,x1\n7,9,0,3\n8,1,2,1\r\n9,1,3,0\n";

TEST_F(Import, SetsCsvCountsEachRowOnce) {
  const auto trace = open("m_code_layer5.csv", kSets);
  EXPECT_EQ(trace->header().num_experts, 4);
  EXPECT_EQ(trace->header().top_k, 2);
  EXPECT_EQ(trace->header().layers, std::vector<std::int32_t>{0});
  EXPECT_EQ(trace->header().domains, std::vector<std::string>{"code"});
  const LayerTrace layer = trace->layer(0);
  EXPECT_EQ(layer.ids, u16({0, 3, 2, 1, 3, 0}));
  EXPECT_EQ((*layer.tokens)[2].position, 2U);
  EXPECT_EQ(select_sets(layer).num_tokens(), 3U);
}

TEST_F(Import, SetsCsvLayerFromName) {
  const ImportOptions options{.num_experts = 6, .layer_from_name = true};
  EXPECT_EQ(open("m_code_layer5.csv", kSets, options)->header().layers,
            std::vector<std::int32_t>{5});
  EXPECT_EQ(open("m_code_layer5.csv", kSets, options)->header().num_experts, 6);
  EXPECT_EQ(open("code_layerx.csv", kSets, options)->header().layers, std::vector<std::int32_t>{0});
  EXPECT_EQ(open("code_layerx.csv", kSets)->header().domains,
            std::vector<std::string>{"code_layerx"});
}

TEST_F(Import, SeveralFilesAreJoined) {
  const std::vector<std::filesystem::path> files = {
      write("m_code_layer0.csv", kSets),
      write("m_book_layer0.csv", "token_id,occurrences,x0,x1\n1,1,5,4\n2,1,4,0\n")};
  const auto trace = open_trace(files);
  EXPECT_EQ(trace->header().num_experts, 6) << "the highest id of all files counts";
  EXPECT_EQ(trace->header().domains, (std::vector<std::string>{"code", "book"}));
  const LayerTrace layer = trace->layer(0);
  EXPECT_EQ(layer.num_experts, 6);
  EXPECT_EQ(layer.ids, u16({0, 3, 2, 1, 3, 0, 5, 4, 4, 0}));
  // Even rows of each file are fitted on.
  EXPECT_EQ(select_rows(layer, {.part = Part::kFit}), (std::vector<std::uint32_t>{0, 2, 3}));
  EXPECT_EQ(select_rows(layer, {.part = Part::kAll, .domain = 1}),
            (std::vector<std::uint32_t>{3, 4}));
}

TEST_F(Import, BadSetsCsvIsRefusedByLine) {
  refused("token_id,occurrences,x0,x1\n7,9,0,3\n8,1,2\n", {"line 3", "3 fields", "4 columns"});
  refused("token_id,occurrences,x0,x1\n7,9,0,three\n", {"line 2", "column x1", "three"});
  refused("token_id,occurrences,x0,x1\n7,9,0,-1\n", {"line 2", "expert id -1"});
  refused("token_id,occurrences,x0,x1\n7,9,0,99999999999999999999\n", {"line 2", "999"});
  refused("token_id,occurrences,x0,x1\n7,9,0,8\n", {"line 2", "id 8", "[0, 8)"},
          {.num_experts = 8});
  refused("token_id,occurrences,x0,x1\n7,9,3,3\n", {"line 2", "expert 3", "twice"});
  refused("token_id,occurrences,x0,x2\n7,9,3,4\n", {"line 1", "column 4", "x2"});
  refused("token_id,occurrences,x0,x1\n", {"no rows"});
  refused("token_id,occurrences\n1,2\n", {"line 1"});
  refused("", {"empty"});
  refused("hello\n", {"not a routing trace"});
  refused("domain,layer,e0\n", {"loads of experts"});
}

// --- CSV of co-activation counts -----------------------------------------------------------------

TEST_F(Import, CoactivationCountsBecomeSetsOfTwo) {
  const auto trace = open("c.csv",
                          "layer,expert,e0,e1,e2\n0,0,0,5,0\n0,1,5,0,2\n0,2,0,2,0\n"
                          "3,2,1,0,0\n3,0,0,0,1\n3,1,0,7,0\n");
  EXPECT_EQ(trace->header().layers, (std::vector<std::int32_t>{0, 3}));
  EXPECT_EQ(trace->header().top_k, 2);
  const LayerTrace layer = trace->layer(0);
  ASSERT_TRUE(layer.counts.has_value());
  EXPECT_EQ(layer.counts->experts, u16({0, 1, 1, 2}));
  EXPECT_EQ(layer.counts->tokens, (std::vector<std::uint32_t>{5, 2}));
  EXPECT_EQ(trace->layer(1).counts->experts, u16({0, 2})) << "diagonal left out, rows in any order";
  const std::vector<std::int32_t> device_of = {0, 0, 1};
  EXPECT_NEAR(count_replicas(select_sets(layer), device_of, 2).replicas_per_token(), 9.0 / 7,
              1e-12);
}

TEST_F(Import, BadCoactivationCountsAreRefused) {
  refused("layer,expert,e0,e1\n0,0,0,5\n0,1,4,0\n", {"layer 0", "experts 0 and 1", "5", "4"});
  refused("layer,expert,e0,e1\n0,0,0,5\n", {"layer 0", "expert 1 is missing"});
  refused("layer,expert,e0,e1\n0,0,0,5\n0,0,0,5\n", {"line 3", "second row"});
  refused("layer,expert,e0,e1\n0,2,0,5\n", {"line 2", "expert id 2"});
  refused("layer,expert,e0,e1\n0,0,0,-5\n", {"line 2", "column e1", "-5"});
  refused("layer,expert,e0,e1\n-1,0,0,5\n", {"line 2", "layer -1"});
  refused("layer,expert,e0,e1\n0,0,0,5\n0,1,5,0\n", {"2 experts, not of 8"}, {.num_experts = 8});
}

// --- .npy ----------------------------------------------------------------------------------------

template <typename Value>
std::string npy(const std::string& type, const std::string& shape, const std::vector<Value>& values,
                const std::string& fortran = "False") {
  std::string header =
      "{'descr': '" + type + "', 'fortran_order': " + fortran + ", 'shape': (" + shape + "), }\n";
  std::string text = "\x93NUMPY\x01";
  text += '\0';
  text += static_cast<char>(header.size());
  text += '\0';
  text += header;
  text.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value));
  return text;
}

TEST_F(Import, LogitsBecomeTopK) {
  const std::vector<float> logits = {1, 3, 2, 0, 5, 5, 5, 5};
  const auto trace = open("l.npy", npy("<f4", "2, 4", logits), {.top_k = 2});
  EXPECT_EQ(trace->header().num_experts, 4);
  EXPECT_TRUE(trace->header().has_weights);
  const LayerTrace layer = trace->layer(0, true);
  EXPECT_EQ(layer.ids, u16({1, 2, 0, 1})) << "descending score; ties to the lowest id";
  const float sum = std::exp(-2.F) + 1 + std::exp(-1.F) + std::exp(-3.F);
  EXPECT_FLOAT_EQ(layer.weights[0], 1 / sum);
  EXPECT_FLOAT_EQ(layer.weights[1], std::exp(-1.F) / sum);
  EXPECT_FLOAT_EQ(layer.weights[2], 0.25F);
}

TEST_F(Import, LogitsOfManyLayersAndHalfFloats) {
  // 1.0, -2.0, 0.5 / smallest subnormal, 0, -0
  const std::vector<std::uint16_t> halves = {0x3C00, 0xC000, 0x3800, 0x0001, 0x0000, 0x8000};
  const auto trace = open("l.npy", npy("<f2", "2, 1, 3", halves), {.top_k = 1});
  EXPECT_EQ(trace->header().layers, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(trace->layer(0).ids, u16({0}));
  EXPECT_EQ(trace->layer(1).ids, u16({0}));
}

TEST_F(Import, IdsOfEveryWidth) {
  const std::vector<std::int32_t> ids = {0, 2, 1, -1, 3, 0};
  const auto trace = open("i.npy", npy("<i4", "3, 2", ids));
  EXPECT_EQ(trace->layer(0).ids, u16({0, 2, 1, -1, 3, 0}));
  EXPECT_EQ(trace->header().num_experts, 4);
  EXPECT_FALSE(trace->header().has_weights);
  const std::vector<std::int64_t> wide(ids.begin(), ids.end());
  EXPECT_EQ(open("i.npy", npy("<i8", "3, 2", wide))->layer(0).ids, trace->layer(0).ids);
  const std::vector<std::int16_t> narrow(ids.begin(), ids.end());
  EXPECT_EQ(open("i.npy", npy("<i2", "3, 2", narrow))->layer(0).ids, trace->layer(0).ids);
  const std::vector<std::uint8_t> bytes = {0, 2, 3, 0};
  EXPECT_EQ(open("i.npy", npy("|u1", "2, 2", bytes))->layer(0).ids, u16({0, 2, 3, 0}));
}

TEST_F(Import, BadNpyIsRefused) {
  const std::vector<float> logits = {1, 3, 2, std::nanf("")};
  refused(npy("<f4", "1, 4", logits), {"layer 0: token 0: byte", "expert 3", "nan"}, {.top_k = 2});
  refused(npy("<f4", "1, 4", logits), {"give top_k"});
  refused(npy("<f4", "1, 3", logits), {"16 bytes of data, expected 12"}, {.top_k = 2});
  refused(npy("<f4", "4", logits), {"1 dimensions"}, {.top_k = 2});
  refused(npy("<f4", "2, 2", logits), {"top_k is 3 of 2"}, {.top_k = 3});
  refused(npy("<f4", "2, 2", logits, "True"), {"column-major"}, {.top_k = 1});
  refused(npy("<f8", "1, 2", logits), {"type <f8"}, {.top_k = 1});
  refused(npy("<f4", "0, 4", std::vector<float>()), {"empty"}, {.top_k = 1});
  refused(npy("<f4", "1, 4", logits), {"logits of 4 experts, not of 8"},
          {.num_experts = 8, .top_k = 2});
  refused("\x93NUMPY\x01", {"truncated .npy header"});
  refused(npy("|u1", "1, 2", std::vector<std::uint8_t>{255, 255}), {"expert 255", "twice"});
  refused(npy("|u1", "1, 2", std::vector<std::uint8_t>{255, 1}), {"id 255", "[0, 64)"},
          {.num_experts = 64});
  const float inf = std::numeric_limits<float>::infinity();
  refused(npy("<f4", "1, 2", std::vector<float>{inf, 0}), {"expert 0 is inf"}, {.top_k = 1});
  refused(npy("<f4", "1, 2", std::vector<float>{-inf, -inf}), {"all logits"}, {.top_k = 1});
}

TEST_F(Import, MaskedLogitsAreChosenLast) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {-inf, 2, 1};
  EXPECT_EQ(open("l.npy", npy("<f4", "1, 3", logits), {.top_k = 2})->layer(0).ids, u16({1, 2}));
}

// --- JSONL of engines ----------------------------------------------------------------------------

TEST_F(Import, RequestRecords) {
  const auto trace =
      open("e.jsonl", R"({"domain":"code","routed_experts":[[[0,1],[2,3]],[[1,2],[3,0]]]})"
                      "\n"
                      R"({"domain":"book","topk_ids":[[[3,1],[0,1]]]})"
                      "\n");
  EXPECT_EQ(trace->header().layers, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(trace->header().domains, (std::vector<std::string>{"code", "book"}));
  EXPECT_EQ(trace->layer(0).ids, u16({0, 1, 1, 2, 3, 1}));
  EXPECT_EQ(trace->layer(1).ids, u16({2, 3, 3, 0, 0, 1}));
  const auto tokens = *trace->layer(0).tokens;
  EXPECT_EQ(tokens[1], (TokenInfo{0, 1, 0, 0}));
  EXPECT_EQ(tokens[2], (TokenInfo{1, 0, 1, 0}));
}

TEST_F(Import, EngineResponses) {
  const auto vllm =
      open("v.jsonl", R"({"prompt_routed_experts":[[[0,1]]],)"
                      R"("choices":[{"text":"x","routed_experts":[[[2,3]],[[1,0]]]}]})");
  EXPECT_EQ(vllm->layer(0).ids, u16({0, 1, 2, 3, 1, 0}));
  EXPECT_EQ(vllm->header().domains, std::vector<std::string>{"v"});
  // int32 1, 2, 0, 3
  const auto sglang =
      open("s.jsonl", R"({"text":"x","meta_info":{"routed_experts":"AQAAAAIAAAAAAAAAAwAAAA=="}})",
           {.top_k = 2, .num_layers = 1});
  EXPECT_EQ(sglang->layer(0).ids, u16({1, 2, 0, 3}));
  const auto extension =
      open("s.jsonl", R"({"choices":[{"sgl_ext":{"routed_experts":"AQAAAAIAAAAAAAAAAwAAAA=="}}]})",
           {.top_k = 2, .num_layers = 2});
  EXPECT_EQ(extension->layer(1).ids, u16({0, 3}));
}

TEST_F(Import, TokenRecords) {
  const auto trace =
      open("t.jsonl", "{\"experts\":[[0,1],[2,3]]}\n\n{\"experts\":[[1,0],[4,3]]}\n");
  EXPECT_EQ(trace->layer(1).ids, u16({2, 3, 4, 3}));
  EXPECT_EQ(trace->header().num_experts, 5);
}

TEST_F(Import, PaddingRowsAreMarkedAndDropped) {
  const auto trace = open("p.jsonl", R"({"topk_ids":[[[0,1]],[[-1,-1]],[[2,-1]],[[-1,-1]]]})");
  const LayerTrace layer = trace->layer(0);
  EXPECT_EQ(count_dropped(layer), (DroppedRows{.padding = 2}));
  EXPECT_EQ(select_sets(layer).num_picks(), 3U);
}

TEST_F(Import, WarmUpRowsAreMarkedAndDropped) {
  std::string text;
  for (int i = 0; i < 20; ++i) {
    text += "{\"experts\":[[5,6],[1,2]]}\n";
  }
  text += "{\"experts\":[[5,6],[1,3]]}\n{\"experts\":[[5,6],[1,2]]}\n";
  const LayerTrace layer = open("w.jsonl", text)->layer(0);
  EXPECT_EQ(count_dropped(layer), (DroppedRows{.warm_up = 20}));
  EXPECT_EQ(select_rows(layer, {}), (std::vector<std::uint32_t>{20, 21}));
  EXPECT_EQ(count_dropped(open("w.jsonl", text, {.warm_up_rows = 0})->layer(0)), DroppedRows());
  EXPECT_EQ(count_dropped(open("w.jsonl", text, {.warm_up_rows = 21})->layer(0)), DroppedRows());
}

TEST_F(Import, BadEngineRecordsAreRefused) {
  refused("{\"experts\":[[0,1]]}\n{\"experts\":[[0,1],[2,3]]}\n", {"line 2", "a list of 1 layers"});
  refused("{\"experts\":[[0,1]]}\n{\"experts\":[[0,1,2]]}\n", {"line 2", "a list of 2 expert"});
  refused("{\"experts\":[[0,1]]}\n{\"text\":\"x\"}\n", {"line 2", "no \"routed_experts\""});
  refused("{\"experts\":[[0,1]]}\n{\"experts\":[[0,1\n", {"line 2", "malformed JSON"});
  refused("{\"experts\":[[0,64]]}\n", {"line 1", "/experts/0", "id 64", "[0, 64)"},
          {.num_experts = 64});
  refused("{\"experts\":[[0,-2]]}\n", {"id -2"});
  refused("{\"experts\":[[0,0.5]]}\n", {"line 1", "/experts/0/1", "0.5"});
  refused("{\"experts\":[[255,255]]}\n", {"line 1", "every id is 255", "never recorded"});
  refused("{\"experts\":[[1,2,1]]}\n", {"expert 1", "twice"});
  refused("{\"experts\":[]}\n", {"no token"});
  refused("{\"experts\":[[]]}\n", {"line 1"});
  refused("{\"experts\":[[[]]]}\n", {"line 1"});
  refused("{\"experts\":5}\n", {"line 1", "an array"});
  refused("{\"experts\":\"AQAAAA==\"}\n", {"give the number of layers"});
  refused("{\"experts\":\"AQAAAA==\"}\n", {"1 ids are no whole tokens"},
          {.top_k = 2, .num_layers = 1});
  refused("{\"experts\":\"A*==\"}\n", {"base64"}, {.top_k = 1, .num_layers = 1});
  refused("{\"experts\":[[0,1]],\"domain\":3}\n", {"line 1", "/domain"});
}

}  // namespace
}  // namespace coterie::routing
