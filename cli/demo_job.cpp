// SPDX-License-Identifier: Apache-2.0
#include "cli/demo_job.hpp"

#include <algorithm>
#include <cmath>

#include "cli/self_process.hpp"
#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/base/json.hpp"
#include "coterie/run/exchange/exchange.hpp"

namespace coterie::cli {
namespace {

constexpr std::int64_t kComparedTokens = 512;
/// What one domain says of another needs no thorough search.
constexpr std::int32_t kTransferStarts = 2;

/// Ids of the beginning of the held-out texts, evenly from each, in sequences.
std::vector<std::vector<std::int32_t>> held_out_sequences(const DemoOptions& options,
                                                          std::int64_t num_tokens) {
  const auto tokenizer = models::Tokenizer::from_file(options.model / "tokenizer.json");
  const auto& texts = options.held_out_texts.empty() ? options.texts : options.held_out_texts;
  const std::int64_t share =
      std::max<std::int64_t>(1, num_tokens / static_cast<std::int64_t>(texts.size()));
  const std::int64_t length = std::clamp<std::int64_t>(share / 4, 1, options.sequence_length);
  std::vector<std::vector<std::int32_t>> sequences;
  for (const models::TextSource& text : texts) {
    const auto ids = models::encode_beginning(tokenizer, read_text_file(text.file), share);
    for (std::size_t begin = 0; begin < ids.size(); begin += static_cast<std::size_t>(length)) {
      const std::size_t end = std::min(ids.size(), begin + static_cast<std::size_t>(length));
      sequences.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(begin),
                             ids.begin() + static_cast<std::ptrdiff_t>(end));
    }
  }
  return sequences;
}

std::filesystem::path write_sequences(const DemoOptions& options) {
  std::string lines;
  for (const auto& sequence : held_out_sequences(options, options.run_tokens)) {
    lines += Json(sequence).dump() + "\n";
  }
  const std::filesystem::path file = options.out / "run_tokens.jsonl";
  write_text_file(file, lines);
  return file;
}

routing::Selection with_domain(routing::Selection selection, std::size_t domain) {
  selection.domain = static_cast<std::uint16_t>(domain);
  return selection;
}

/// Bytes that cross between devices when the tokens of the selected rows are computed: sequence s
/// belongs to device s mod devices, as in `coterie run`; rows and partial sums in fp32.
std::uint64_t bytes_between_devices(const routing::LayerTrace& layer,
                                    const routing::Selection& selection,
                                    const placement::LayerPlacement& placed,
                                    std::int64_t hidden_size) {
  const exchange::PlacementIndex index(placed);
  const placement::ReplicaChooser chooser(placed);
  const auto num_devices = static_cast<std::size_t>(placed.num_devices());
  const auto width = static_cast<std::size_t>(layer.top_k);
  std::vector<std::vector<std::int32_t>> ids(num_devices);
  for (const std::uint32_t row : routing::select_rows(layer, selection)) {
    auto& of_home = ids[(*layer.tokens)[row].sequence % num_devices];
    for (const std::uint16_t id : layer.row(row)) {
      of_home.push_back(id == routing::kNoExpert ? -1 : id);
    }
  }
  exchange::TrafficShape shape;
  shape.hidden = hidden_size;
  std::uint64_t bytes = 0;
  for (std::size_t home = 0; home < num_devices; ++home) {
    std::vector<std::int32_t> devices(ids[home].size());
    for (std::size_t begin = 0; begin < devices.size(); begin += width) {
      chooser.choose(std::span(ids[home]).subspan(begin, width),
                     std::span(devices).subspan(begin, width));
    }
    const std::vector<float> weights(devices.size());
    const exchange::TokenRouting tokens{static_cast<std::int64_t>(devices.size() / width),
                                        layer.top_k, ids[home], weights, devices};
    const auto traffic = exchange::predict_home_traffic(tokens, index, shape);
    for (std::size_t device = 0; device < num_devices; ++device) {
      if (device != home) {
        bytes += traffic.dispatch_to[device] + traffic.combine_from[device];
      }
    }
  }
  return bytes;
}

report::Measured measure(const routing::LayerTrace& layer, const routing::Selection& selection,
                         const placement::LayerPlacement& placed, std::int64_t hidden_size) {
  return {placement::measure_placement(placed, routing::select_sets(layer, selection)),
          bytes_between_devices(layer, selection, placed, hidden_size)};
}

/// Domain number of `name` in a trace's header.
std::size_t domain_index(const routing::Trace& trace, const std::string& name) {
  const auto& domains = trace.header().domains;
  const auto found = std::ranges::find(domains, name);
  COTERIE_REQUIRE(found != domains.end(), trace.name(), ": no text of domain \"", name,
                  "\", which is in the held-out text");
  return static_cast<std::size_t>(found - domains.begin());
}

}  // namespace

TracedText trace_texts(const DemoOptions& options, Progress& progress) {
  models::DecoderOptions decoder_options;
  kernels::Threads threads(options.num_threads);
  decoder_options.execution.threads = &threads;
  models::Decoder decoder(options.model, decoder_options);
  const auto tokenizer = models::Tokenizer::from_file(options.model / "tokenizer.json");
  models::RecordOptions record;
  record.max_tokens = options.max_tokens;
  record.sequence_length = std::min(options.sequence_length, decoder.config().max_positions);

  TracedText text;
  const std::filesystem::path fit_file = options.out / "fit.trace";
  text.fit_record =
      models::record_trace(decoder, tokenizer, options.texts, record, fit_file, progress);
  text.fit = routing::open_binary_trace(fit_file);
  if (options.held_out_texts.empty()) {
    text.fit_rows.part = routing::Part::kFit;
    text.held_out_rows.part = routing::Part::kHeldOut;
    text.fit_rows.split = text.held_out_rows.split = routing::Split::kSequence;
    text.held_out = routing::open_binary_trace(fit_file);
    text.held_out_record = text.fit_record;
  } else {
    const std::filesystem::path file = options.out / "held_out.trace";
    record.with_losses = true;
    text.held_out_record =
        models::record_trace(decoder, tokenizer, options.held_out_texts, record, file, progress);
    text.held_out = routing::open_binary_trace(file);
  }
  text.domains = text.held_out->header().domains;
  text.hidden_size = decoder.config().hidden_size;
  return text;
}

JudgedPlacement place_and_judge(const TracedText& text, const std::string& algorithm,
                                const DemoOptions& options, Progress& progress) {
  JudgedPlacement judged;
  judged.name = algorithm;
  judged.file = options.out / (algorithm + ".placement.json");
  placement::Placement& placement = judged.placement;
  placement.algorithm = algorithm;
  placement.options = options.placement;
  placement.model_fingerprint = text.fit->header().model_fingerprint;
  const auto& layers = text.fit->header().layers;
  progress.begin("place (" + algorithm + ")", static_cast<std::int64_t>(layers.size()));
  for (std::size_t slot = 0; slot < layers.size(); ++slot) {
    const auto fit = text.fit->layer(slot);
    const auto held_out = text.held_out->layer(slot);
    placement::PlacedLayer placed;
    placed.layer = layers[slot];
    placed.placement = placement::place_layer(routing::select_sets(fit, text.fit_rows), algorithm,
                                              options.placement, placed.layer);
    const auto add = [&, &measured = judged.measured.emplace_back()](
                         const routing::LayerTrace& layer, const routing::Selection& selection) {
      measured.push_back(measure(layer, selection, placed.placement, text.hidden_size));
    };
    add(fit, text.fit_rows);
    add(held_out, text.held_out_rows);
    for (std::size_t domain = 0; domain < text.domains.size(); ++domain) {
      add(held_out, with_domain(text.held_out_rows, domain));
    }
    placed.fit = judged.measured.back()[0].figures;
    placed.held_out = judged.measured.back()[1].figures;
    placement.layers.push_back(std::move(placed));
    progress.update(static_cast<std::int64_t>(slot) + 1);
  }
  placement::write_placement(judged.file, placement);
  progress.end();
  return judged;
}

DomainTransfer measure_transfer(const TracedText& text, const DemoOptions& options,
                                Progress& progress) {
  DomainTransfer transfer;
  transfer.domains = text.domains;
  placement::PlacementOptions capped = options.placement;
  capped.num_starts = kTransferStarts;
  placement::PlacementOptions uncapped = capped;
  uncapped.load_cap.reset();
  const std::size_t num_layers = text.fit->header().layers.size();
  const std::size_t num_domains = text.domains.size();
  progress.begin("place for each domain alone",
                 static_cast<std::int64_t>(num_domains * num_layers));
  for (std::size_t from = 0; from < num_domains; ++from) {
    auto& row = transfer.replicas.emplace_back(num_domains, 0.0);
    bool without_cap = false;
    const std::size_t fit_domain = domain_index(*text.fit, text.domains[from]);
    for (std::size_t slot = 0; slot < num_layers; ++slot) {
      const auto sets =
          routing::select_sets(text.fit->layer(slot), with_domain(text.fit_rows, fit_domain));
      placement::LayerPlacement placed;
      try {
        placed = placement::place_layer(sets, "coterie", capped);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kInfeasible) {
          throw;
        }
        placed = placement::place_layer(sets, "coterie", uncapped);
        without_cap = true;
      }
      const auto held_out = text.held_out->layer(slot);
      for (std::size_t to = 0; to < num_domains; ++to) {
        const auto figures = placement::measure_placement(
            placed, routing::select_sets(held_out, with_domain(text.held_out_rows, to)));
        row[to] += figures.replicas / static_cast<double>(num_layers);
      }
      progress.update(static_cast<std::int64_t>(from * num_layers + slot) + 1);
    }
    transfer.without_cap.push_back(without_cap);
  }
  progress.end();
  return transfer;
}

report::RunCheck run_with_placement(const JudgedPlacement& judged, const DemoOptions& options,
                                    Progress& progress) {
  const std::string processes = std::to_string(options.placement.num_devices);
  progress.begin("run on " + processes + " processes (" + judged.name + ")", 0);
  const std::filesystem::path tokens = write_sequences(options);
  const Json document =
      run_self({"run", "--model", options.model, "--tokens", tokens, "--placement", judged.file,
                "--nproc", processes, "--max-tokens", "0"});
  progress.end();
  const JsonReader run(document, "output of coterie run");
  const JsonReader logits = run.at("logits");
  report::RunCheck check;
  check.num_processes = options.placement.num_devices;
  check.num_tokens = static_cast<std::uint64_t>(run.at("num_tokens").as_int(0));
  for (const char* purpose : {"dispatch", "combine"}) {
    const JsonReader traffic = run.at("traffic").at(purpose);
    check.bytes_sent += static_cast<std::uint64_t>(traffic.at("bytes_sent").as_int(0));
    check.bytes_predicted += static_cast<std::uint64_t>(traffic.at("bytes_predicted").as_int(0));
  }
  check.bit_equal = logits.at("bit_equal_to_one_process_with_same_placement").as_bool();
  check.max_difference = logits.at("max_difference_before_flips").as_double();
  check.num_flips = static_cast<std::uint64_t>(logits.at("routing_flips").as_int(0));
  return check;
}

double write_placed_model(const JudgedPlacement& judged, const DemoOptions& options,
                          Progress& progress) {
  const std::filesystem::path folder = options.out / "model";
  std::filesystem::remove_all(folder);
  models::permute_checkpoint(options.model, judged.placement, folder, progress);

  progress.begin("compare the logits of the re-ordered checkpoint", 0);
  const auto sequences = held_out_sequences(options, kComparedTokens);
  kernels::Threads threads(options.num_threads);
  models::DecoderOptions decoder_options;
  decoder_options.execution.threads = &threads;
  const auto expected = models::Decoder(options.model, decoder_options).logits(sequences);
  const auto found = models::Decoder(folder, decoder_options).logits(sequences);
  double largest = 0;
  double difference = 0;
  for (std::size_t i = 0; i < expected.values().size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(expected.values()[i])));
    difference = std::max(difference, std::abs(static_cast<double>(expected.values()[i]) -
                                               static_cast<double>(found.values()[i])));
  }
  progress.end();
  return largest > 0 ? difference / largest : 0;
}

}  // namespace coterie::cli
