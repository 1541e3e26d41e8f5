// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/routing/import.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/base/json.hpp"
#include "coterie/plan/routing/import_part.hpp"
#include "coterie/plan/routing/text_lines.hpp"
#include "coterie/plan/routing/trace_file.hpp"
#include "coterie/plan/routing/trace_format.hpp"

namespace coterie::routing {
namespace {

enum class FileKind { kBinary, kJsonl, kEngineJsonl, kSetsCsv, kCoactivationCsv, kNpy };

FileKind kind_of(const std::string& name, std::string_view text) {
  COTERIE_REQUIRE(!text.empty(), name, ": the file is empty");
  if (text.starts_with("COTRACE")) {
    return FileKind::kBinary;
  }
  if (text.starts_with("\x93NUMPY")) {
    return FileKind::kNpy;
  }
  LineReader lines(text, name);
  const std::string_view first = lines.next().value_or("");
  if (first.starts_with("token_id,")) {
    return FileKind::kSetsCsv;
  }
  if (first.starts_with("layer,expert,")) {
    return FileKind::kCoactivationCsv;
  }
  COTERIE_REQUIRE(!first.starts_with("domain,layer,"), name,
                  ": line 1: this table holds loads of experts, not which experts met");
  const std::size_t brace = first.find_first_not_of(" \t");
  if (brace != std::string_view::npos && first[brace] == '{') {
    return first.find("\"coterie-trace\"") != std::string_view::npos ? FileKind::kJsonl
                                                                     : FileKind::kEngineJsonl;
  }
  fail(
      ErrorCode::kBadInput, name,
      ": byte 0: not a routing trace of a known kind (binary or JSONL trace, CSV of expert sets or "
      "co-activation counts, .npy, JSONL of an engine)");
}

ImportedPart import_file(const std::filesystem::path& path, std::string_view text, FileKind kind,
                         const ImportOptions& options) {
  switch (kind) {
    case FileKind::kSetsCsv: return import_sets_csv(path, text, options);
    case FileKind::kCoactivationCsv: return import_coactivation_csv(path, text, options);
    case FileKind::kNpy: return import_npy(path, text, options);
    default: return import_engine_jsonl(path, text, options);
  }
}

/// A file that was opened: a trace of ours, or a part whose number of experts may be open yet.
struct Opened {
  std::unique_ptr<Trace> trace;
  ImportedPart part;
};

Opened open_file(const std::filesystem::path& path, const ImportOptions& options) {
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  Opened opened;
  const FileKind kind = kind_of(path.string(), text);
  if (kind == FileKind::kBinary || kind == FileKind::kJsonl) {
    opened.trace = kind == FileKind::kBinary ? open_binary_trace(path) : read_jsonl_trace(path);
    const std::int32_t num_experts = opened.trace->header().num_experts;
    COTERIE_REQUIRE(options.num_experts == 0 || options.num_experts == num_experts, path.string(),
                    ": a trace of ", num_experts, " experts, not of ", options.num_experts);
  } else {
    opened.part = import_file(path, text, kind, options);
  }
  return opened;
}

std::int32_t num_experts_of(const std::vector<Opened>& files) {
  std::int32_t highest = -1;
  for (const Opened& file : files) {
    const std::int32_t known =
        file.trace ? file.trace->header().num_experts : file.part.header.num_experts;
    if (known > 0) {
      return known;
    }
    highest = std::max(highest, file.part.highest_id);
  }
  return highest + 1;
}

bool same_row_everywhere(const ImportedPart& part, std::size_t r) {
  return std::all_of(part.layers.begin(), part.layers.end(), [&](const LayerTrace& layer) {
    return std::ranges::equal(layer.row(r), layer.row(0));
  });
}

}  // namespace

void finish_token_rows(ImportedPart& part, std::vector<TokenInfo> tokens,
                       const ImportOptions& options) {
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    const bool empty =
        std::all_of(part.layers.begin(), part.layers.end(), [&](const LayerTrace& layer) {
          return std::ranges::all_of(layer.row(r), [](auto id) { return id == kNoExpert; });
        });
    tokens[r].flags = empty ? kPadding : 0;
  }
  std::size_t run = 0;
  while (run < tokens.size() && same_row_everywhere(part, run)) {
    ++run;
  }
  if (options.warm_up_rows > 0 && std::cmp_greater_equal(run, options.warm_up_rows) &&
      tokens[0].flags == 0) {
    for (TokenInfo& token : std::span(tokens).first(run)) {
      token.flags = kWarmUp;
    }
  }
  const auto table = std::make_shared<const std::vector<TokenInfo>>(std::move(tokens));
  for (LayerTrace& layer : part.layers) {
    layer.tokens = table;
  }
}

std::unique_ptr<Trace> open_trace(std::span<const std::filesystem::path> files,
                                  const ImportOptions& options) {
  COTERIE_REQUIRE(!files.empty(), "no trace file is given");
  COTERIE_REQUIRE(options.num_experts >= 0 && options.num_experts < kNoExpert,
                  "the number of experts is ", options.num_experts);
  std::vector<Opened> opened;
  for (const std::filesystem::path& file : files) {
    opened.push_back(open_file(file, options));
  }
  const std::int32_t num_experts = num_experts_of(opened);
  std::vector<std::unique_ptr<Trace>> traces;
  for (Opened& file : opened) {
    if (file.trace) {
      traces.push_back(std::move(file.trace));
      continue;
    }
    ImportedPart& part = file.part;
    COTERIE_REQUIRE(part.highest_id < num_experts, part.name, ": expert id ", part.highest_id,
                    " is not in [0, ", num_experts, ")");
    if (part.header.num_experts == 0) {
      part.header.num_experts = num_experts;
    }
    for (LayerTrace& layer : part.layers) {
      layer.num_experts = part.header.num_experts;
    }
    traces.push_back(std::make_unique<MemoryTrace>(std::move(part.header), std::move(part.layers),
                                                   std::move(part.name)));
  }
  return join_traces(std::move(traces));
}

std::unique_ptr<Trace> open_trace(const std::filesystem::path& file, const ImportOptions& options) {
  return open_trace(std::span(&file, 1), options);
}

}  // namespace coterie::routing
