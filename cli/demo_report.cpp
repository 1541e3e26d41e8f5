// SPDX-License-Identifier: Apache-2.0
#include "cli/demo_report.hpp"

#include <cstdio>

#include "coterie/base/error.hpp"

namespace coterie::cli {
namespace {

struct Wording {
  const char* name;
  const char* label;
  const char* description;
};

constexpr Wording kWordings[] = {
    {"contiguous", "contiguous", "Experts in checkpoint order: what every engine does by itself."},
    {"occult", "Algorithm 1", "Occult's greedy grouping of experts that are chosen together."},
    {"coterie", "ours", "An exact search on the tokens' expert sets, under the load cap."},
};

std::uint64_t tokens_of(const std::vector<JudgedPlacement>& placements, std::size_t text) {
  return placements[0].measured[0][text].figures.num_tokens;
}

std::vector<report::TextSample> list_texts(const TracedText& text,
                                           const std::vector<JudgedPlacement>& placements) {
  std::vector<report::TextSample> samples = {
      {"fitted", report::TextRole::kFit, tokens_of(placements, 0)},
      {"held-out", report::TextRole::kHeldOut, tokens_of(placements, 1)}};
  for (std::size_t domain = 0; domain < text.domains.size(); ++domain) {
    samples.push_back(
        {text.domains[domain], report::TextRole::kOtherDomain, tokens_of(placements, 2 + domain)});
  }
  return samples;
}

report::PlacementReport describe(const JudgedPlacement& judged) {
  report::PlacementReport described;
  described.name = described.label = judged.name;
  for (const Wording& wording : kWordings) {
    if (judged.name == wording.name) {
      described.label = wording.label;
      described.description = wording.description;
    }
  }
  for (const auto& layer : judged.placement.layers) {
    described.layers.push_back(layer.placement);
  }
  described.measured = judged.measured;
  described.run = judged.run;
  return described;
}

std::vector<report::LayerReport> describe_layers(const DemoOptions& options,
                                                 const TracedText& text) {
  const auto& header = text.fit->header();
  const auto sizes = routing::even_device_sizes(header.num_experts, options.placement.num_devices);
  std::vector<report::LayerReport> layers;
  for (std::size_t slot = 0; slot < header.layers.size(); ++slot) {
    report::LayerReport& layer = layers.emplace_back();
    layer.layer = header.layers[slot];
    layer.bounds = routing::replica_bounds(
        routing::select_sets(text.held_out->layer(slot), text.held_out_rows), sizes);
    layer.pairs = routing::count_pairs(routing::select_sets(text.fit->layer(slot), text.fit_rows));
  }
  return layers;
}

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

std::string transfer_note(const DomainTransfer& transfer, std::size_t from) {
  std::string note = "Fitted on " + transfer.domains[from] + " alone, devices a token: ";
  for (std::size_t to = 0; to < transfer.domains.size(); ++to) {
    note += (to == 0 ? "" : ", ") + transfer.domains[to] + " " +
            format("%.2f", transfer.replicas[from][to]);
  }
  if (transfer.without_cap[from]) {
    note += " (without the load cap, which this domain alone cannot keep in every layer)";
  }
  return note + ".";
}

std::string list_of(const std::vector<models::DomainRecord>& records) {
  std::string list;
  for (const models::DomainRecord& record : records) {
    list += (list.empty() ? "" : ", ") + record.domain + " " + std::to_string(record.num_tokens) +
            " tokens";
    if (record.bits_per_byte) {
      list += " (" + format("%.3f", *record.bits_per_byte) + " bits a byte)";
    }
  }
  return list;
}

}  // namespace

report::ReportData make_report(const DemoOptions& options, const TracedText& text,
                               const std::vector<JudgedPlacement>& placements,
                               const DomainTransfer& transfer,
                               std::optional<double> placed_model_difference) {
  const auto& header = text.fit->header();
  report::ReportData data;
  data.title = "Expert placement of " +
               (options.model.filename().empty() ? options.model.parent_path() : options.model)
                   .filename()
                   .string() +
               " (" + header.model_type + ")";
  data.num_devices = options.placement.num_devices;
  data.num_experts = header.num_experts;
  data.top_k = header.top_k;
  data.load_cap = options.placement.load_cap;
  data.texts = list_texts(text, placements);
  data.layers = describe_layers(options, text);
  for (const JudgedPlacement& judged : placements) {
    data.placements.push_back(describe(judged));
  }
  data.provenance = {{"Model", options.model.string()},
                     {"Family", header.model_type},
                     {"Fingerprint", header.model_fingerprint},
                     {"Fitted text", list_of(text.fit_record)},
                     {"Held-out text", list_of(text.held_out_record)},
                     {"Seed", std::to_string(options.placement.seed)}};
  if (transfer.domains.size() > 1) {
    for (std::size_t from = 0; from < transfer.domains.size(); ++from) {
      data.notes.push_back(transfer_note(transfer, from));
    }
  }
  if (placed_model_difference) {
    data.notes.push_back(
        "The re-ordered checkpoint's logits differ from the original's by at most " +
        format("%.1e", *placed_model_difference) + " of the largest.");
  }
  return data;
}

}  // namespace coterie::cli
