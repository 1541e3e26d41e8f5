// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/record_trace.hpp"

#include <algorithm>
#include <numbers>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::models {
namespace {

void check_options(const RecordOptions& options, const ModelConfig& config) {
  COTERIE_REQUIRE(options.max_tokens >= 0, "max tokens: ", options.max_tokens, " is below 0");
  COTERIE_REQUIRE(options.sequence_length >= 1 && options.sequence_length <= config.max_positions,
                  "sequence length: ", options.sequence_length, " is outside [1, ",
                  config.max_positions, "], the model's max_position_embeddings");
  COTERIE_REQUIRE(options.batch_tokens >= 1, "batch tokens: ", options.batch_tokens, " is below 1");
}

routing::TraceHeader make_header(const Decoder& decoder, std::span<const TextSource> texts,
                                 const RecordOptions& options) {
  const ModelConfig& config = decoder.config();
  routing::TraceHeader header;
  header.model_type = config.family;
  header.model_fingerprint = decoder.fingerprint();
  header.num_experts = static_cast<std::int32_t>(config.num_experts);
  header.top_k = static_cast<std::int32_t>(config.top_k);
  header.layers = config.moe_layers;
  header.source = "coterie trace, sequences of " + std::to_string(options.sequence_length);
  header.has_weights = options.with_weights;
  for (const TextSource& text : texts) {
    if (std::ranges::find(header.domains, text.domain) == header.domains.end()) {
      header.domains.push_back(text.domain);
    }
  }
  return header;
}

/// A whole text, checked.
std::string read_utf8(const std::filesystem::path& file) {
  std::string text = read_text_file(file);
  require_utf8(text, file.string());
  const bool blank =
      std::ranges::all_of(text, [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); });
  COTERIE_REQUIRE(!blank, file.string(), ": the text is empty");
  return text;
}

class Recorder {
 public:
  Recorder(Decoder& decoder, const Tokenizer& tokenizer, const RecordOptions& options,
           routing::TraceWriter& writer, Progress& progress)
      : decoder_(decoder),
        tokenizer_(tokenizer),
        options_(options),
        writer_(writer),
        progress_(progress) {}

  void add_text(const std::vector<std::int32_t>& tokens, std::uint16_t domain,
                DomainRecord& record) {
    ++record.num_files;
    record.num_tokens += tokens.size();
    record.num_bytes += tokenizer_.decode(tokens, false).size();
    const auto length = static_cast<std::size_t>(options_.sequence_length);
    for (std::size_t begin = 0; begin < tokens.size(); begin += length) {
      const std::size_t end = std::min(tokens.size(), begin + length);
      batch_.emplace_back(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                          tokens.begin() + static_cast<std::ptrdiff_t>(end));
      batch_tokens_ += static_cast<std::int64_t>(end - begin);
      ++record.num_sequences;
      if (batch_tokens_ + options_.sequence_length > options_.batch_tokens) {
        flush(domain);
      }
    }
    flush(domain);
  }

  /// Bits a byte of what was added since the last call.
  double take_bits_per_byte() {
    const double bits = scored_bytes_ == 0 ? 0.0 : nats_ / std::numbers::ln2 / scored_bytes_;
    nats_ = scored_bytes_ = 0;
    return bits;
  }

 private:
  void flush(std::uint16_t domain) {
    if (batch_.empty()) {
      return;
    }
    std::vector<routing::TokenInfo> infos;
    for (const auto& sequence : batch_) {
      for (std::uint32_t position = 0; position < sequence.size(); ++position) {
        infos.push_back({next_sequence_, position, domain, 0});
      }
      ++next_sequence_;
    }
    std::size_t slot = 0;
    const RoutingHook hook = [&](const LayerRouting& routing) {
      ids_.assign(routing.ids.size(), routing::kNoExpert);
      std::ranges::transform(routing.ids, ids_.begin(), [](std::int32_t id) {
        return id < 0 ? routing::kNoExpert : static_cast<std::uint16_t>(id);
      });
      writer_.add_rows(slot++, ids_,
                       options_.with_weights ? routing.weights : std::span<const float>{});
    };
    if (options_.with_losses) {
      add_losses(decoder_.losses(batch_, hook));
    } else {
      decoder_.route(batch_, hook);
    }
    writer_.add_tokens(infos);
    done_ += static_cast<std::int64_t>(infos.size());
    progress_.update(done_);
    batch_.clear();
    batch_tokens_ = 0;
  }

  void add_losses(const std::vector<double>& losses) {
    for (const double loss : losses) {
      nats_ += loss;
    }
    for (const auto& sequence : batch_) {
      const std::size_t all = tokenizer_.decode(sequence, false).size();
      const std::size_t first = tokenizer_.decode(std::span(sequence).first(1), false).size();
      scored_bytes_ += static_cast<double>(all > first ? all - first : 0);
    }
  }

  Decoder& decoder_;
  const Tokenizer& tokenizer_;
  const RecordOptions& options_;
  routing::TraceWriter& writer_;
  Progress& progress_;
  std::vector<std::vector<std::int32_t>> batch_;
  std::int64_t batch_tokens_ = 0;
  std::uint32_t next_sequence_ = 0;
  std::int64_t done_ = 0;
  double nats_ = 0;
  double scored_bytes_ = 0;
  std::vector<std::uint16_t> ids_;
};

}  // namespace

std::vector<std::int32_t> encode_beginning(const Tokenizer& tokenizer, std::string_view text,
                                           std::int64_t max_tokens) {
  if (max_tokens == 0) {
    return tokenizer.encode(text, false);
  }
  // Tokens near a cut may differ from those of the whole text, so the last ones are not used.
  constexpr std::size_t kSpare = 64;
  const auto wanted = static_cast<std::size_t>(max_tokens);
  for (std::size_t bytes = 8 * (wanted + kSpare);; bytes *= 2) {
    while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0U) == 0x80U) {
      ++bytes;  // not inside a character
    }
    const bool whole = bytes >= text.size();
    std::vector<std::int32_t> ids = tokenizer.encode(whole ? text : text.substr(0, bytes), false);
    if (whole || ids.size() >= wanted + kSpare) {
      ids.resize(std::min(ids.size(), wanted));
      return ids;
    }
  }
}

std::vector<DomainRecord> record_trace(Decoder& decoder, const Tokenizer& tokenizer,
                                       std::span<const TextSource> texts,
                                       const RecordOptions& options,
                                       const std::filesystem::path& out, Progress& progress) {
  check_options(options, decoder.config());
  COTERIE_REQUIRE(!texts.empty(), "no text to trace");
  COTERIE_REQUIRE(tokenizer.vocab_size() <= decoder.config().vocab_size,
                  "the tokenizer has ids up to ", tokenizer.vocab_size() - 1,
                  ", the model's vocabulary has ", decoder.config().vocab_size,
                  ": they do not belong together");
  // All texts are checked before the first is computed.
  for (const TextSource& text : texts) {
    read_utf8(text.file);
  }
  const routing::TraceHeader header = make_header(decoder, texts, options);
  routing::TraceWriter writer(out, header);
  Recorder recorder(decoder, tokenizer, options, writer, progress);
  std::vector<DomainRecord> records;
  progress.begin("tracing tokens", options.max_tokens * static_cast<std::int64_t>(texts.size()));
  for (std::size_t d = 0; d < header.domains.size(); ++d) {
    DomainRecord record;
    record.domain = header.domains[d];
    for (const TextSource& text : texts) {
      if (text.domain == record.domain) {
        const auto tokens = encode_beginning(tokenizer, read_utf8(text.file), options.max_tokens);
        COTERIE_REQUIRE(!tokens.empty(), text.file.string(), ": the text gives no tokens");
        recorder.add_text(tokens, static_cast<std::uint16_t>(d), record);
      }
    }
    if (options.with_losses) {
      record.bits_per_byte = recorder.take_bits_per_byte();
    }
    records.push_back(record);
  }
  progress.end();
  writer.commit();
  return records;
}

}  // namespace coterie::models
