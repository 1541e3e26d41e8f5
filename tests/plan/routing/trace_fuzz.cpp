// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <filesystem>

#include "coterie/base/file.hpp"
#include "coterie/base/hash.hpp"
#include "coterie/plan/routing/routing.hpp"
#include "coterie/plan/routing/trace_format.hpp"
#include "tests/fuzz/fuzz_target.hpp"
#include "tests/plan/routing/tiny_trace.hpp"

namespace coterie::fuzz {
namespace {

using routing::BlockEntry;
using routing::TracePrelude;
using routing::TraceTrailer;

/// Makes the checksums of a binary trace right again, so that what they protect is reached too.
std::string with_right_checksums(std::string bytes) {
  TracePrelude prelude;
  TraceTrailer trailer;
  if (bytes.size() < sizeof(prelude) + sizeof(trailer)) {
    return bytes;
  }
  std::memcpy(&prelude, bytes.data(), sizeof(prelude));
  const std::size_t trailer_at = bytes.size() - sizeof(trailer);
  std::memcpy(&trailer, bytes.data() + trailer_at, sizeof(trailer));
  const std::size_t header_end = sizeof(prelude) + routing::padded(prelude.header_bytes);
  if (header_end > trailer_at || trailer.index_offset > trailer_at ||
      trailer.num_blocks != (trailer_at - trailer.index_offset) / sizeof(BlockEntry)) {
    return bytes;
  }
  for (std::size_t at = trailer.index_offset; at + sizeof(BlockEntry) <= trailer_at;
       at += sizeof(BlockEntry)) {
    BlockEntry entry;
    std::memcpy(&entry, bytes.data() + at, sizeof(entry));
    const std::size_t next = at + sizeof(entry);
    std::uint64_t end = trailer.index_offset;
    if (next + sizeof(entry) <= trailer_at) {
      std::memcpy(&end, bytes.data() + next + offsetof(BlockEntry, offset), sizeof(end));
    }
    if (entry.offset <= end && end <= trailer.index_offset) {
      entry.hash =
          Hash().add(std::string_view(bytes).substr(entry.offset, end - entry.offset)).value();
      std::memcpy(bytes.data() + at, &entry, sizeof(entry));
    }
  }
  const std::string_view view = bytes;
  trailer.hash = Hash()
                     .add(view.substr(0, header_end))
                     .add(view.substr(trailer.index_offset, trailer_at - trailer.index_offset))
                     .add(trailer.index_offset)
                     .add(trailer.num_blocks)
                     .value();
  std::memcpy(bytes.data() + trailer_at, &trailer, sizeof(trailer));
  return bytes;
}

void read(std::string_view bytes) {
  const bool is_binary = bytes.substr(0, 8) == std::string_view(routing::kTraceMagic, 8);
  const std::string repaired = is_binary ? with_right_checksums(std::string(bytes)) : "";
  const auto trace = routing::open_trace(file_of(is_binary ? repaired : bytes));
  const std::size_t num_layers = trace->header().layers.size();
  for (std::size_t slot = 0; slot < std::min<std::size_t>(num_layers, 50); ++slot) {
    static_cast<void>(trace->layer(slot, true));
  }
}

std::vector<std::string> seeds() {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("trace_seed_" + std::to_string(::getpid()));
  std::vector<std::string> seeds;
  for (const bool shared : {true, false}) {
    routing::TinyShape shape;
    shape.shared_tokens = shared;
    shape.has_weights = shared;
    shape.num_tokens = 5;
    const auto trace = routing::tiny_trace(shape);
    routing::write_trace(file, *trace);
    seeds.push_back(read_text_file(file));
    routing::write_jsonl_trace(file, *trace);
    seeds.push_back(read_text_file(file));
  }
  std::filesystem::remove(file);
  seeds.emplace_back("token_id,occurrences,x0,x1,x2\n17,3,0,5,2\n18,1,4,1,3\n");
  seeds.emplace_back("layer,expert,e0,e1,e2\n0,0,0,3,1\n0,1,3,0,2\n0,2,1,2,0\n");
  seeds.emplace_back(R"({"domain":"code","routed_experts":[[[0,1],[2,3]],[[1,2],[3,0]]]})"
                     "\n");
  seeds.emplace_back(R"({"prompt_routed_experts":[[[0,1]]],)"
                     R"("choices":[{"text":"x","routed_experts":[[[2,3]],[[1,0]]]}]})"
                     "\n");
  std::string npy("\x93NUMPY\x01\x00", 8);
  std::string description = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 1, 2), }";
  description.resize(117, ' ');
  npy += static_cast<char>(118);
  npy += '\0';
  npy += description + "\n" + std::string("\0\0\0\0\1\0\0\0\2\0\0\0\0\0\0\0", 16);
  seeds.push_back(npy);
  return seeds;
}

}  // namespace

const Target kTrace = {"trace", read, seeds};

}  // namespace coterie::fuzz
