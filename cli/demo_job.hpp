// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coterie/base/log.hpp"
#include "coterie/models/models.hpp"
#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/routing/routing.hpp"
#include "coterie/report/report.hpp"

namespace coterie::cli {

/// What the user asks of the whole job.
struct DemoOptions {
  std::filesystem::path model;
  std::vector<models::TextSource> texts;           ///< a placement is fitted on these
  std::vector<models::TextSource> held_out_texts;  ///< and judged on these; empty: parts of `texts`
  std::filesystem::path out;
  std::int64_t max_tokens = 0;         ///< of each text; 0: all
  std::int64_t sequence_length = 512;  ///< at most what the model allows
  std::int64_t run_tokens = 2048;      ///< held-out tokens that real processes compute; 0: none
  placement::PlacementOptions placement;
  int num_threads = 1;
};

/// Routing of the fitted and the held-out text.
struct TracedText {
  std::vector<models::DomainRecord> fit_record;
  std::vector<models::DomainRecord> held_out_record;
  std::unique_ptr<routing::Trace> fit;
  std::unique_ptr<routing::Trace> held_out;  ///< may be the same file as `fit`
  routing::Selection fit_rows;               ///< which rows of `fit` count
  routing::Selection held_out_rows;
  std::vector<std::string> domains;  ///< of `held_out`
  std::int64_t hidden_size = 0;
};

/// One placement of all layers and what it does to each kind of text.
struct JudgedPlacement {
  std::string name;  ///< of the algorithm
  placement::Placement placement;
  std::filesystem::path file;
  /// [layers][texts]: the fitted text, the held-out text, then each domain of the held-out text.
  std::vector<std::vector<report::Measured>> measured;
  std::optional<report::RunCheck> run;
};

/// C_T of placements that were fitted on one domain alone, on held-out text of each.
struct DomainTransfer {
  std::vector<std::string> domains;
  std::vector<std::vector<double>> replicas;  ///< [fitted on][used on], mean over layers
  std::vector<bool> without_cap;  ///< [fitted on] the load cap cannot be kept on this domain alone
};

/// Runs the model over the texts; writes OUT/fit.trace and OUT/held_out.trace.
TracedText trace_texts(const DemoOptions& options, Progress& progress);

/// Places with the named algorithm, measures, writes OUT/NAME.placement.json.
JudgedPlacement place_and_judge(const TracedText& text, const std::string& algorithm,
                                const DemoOptions& options, Progress& progress);

/// Fits one placement a domain and uses it on all domains.
DomainTransfer measure_transfer(const TracedText& text, const DemoOptions& options,
                                Progress& progress);

/// Has real processes, one a device, compute the beginning of the held-out texts with a placement
/// and compare it with one process (`coterie run`).
report::RunCheck run_with_placement(const JudgedPlacement& judged, const DemoOptions& options,
                                    Progress& progress);

/// Writes the re-ordered checkpoint OUT/model and returns the largest |difference| of its logits
/// to the original's, over the largest |logit|.
double write_placed_model(const JudgedPlacement& judged, const DemoOptions& options,
                          Progress& progress);

}  // namespace coterie::cli
