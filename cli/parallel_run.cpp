// SPDX-License-Identifier: Apache-2.0
#include "cli/parallel_run.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>

#include "cli/logits_check.hpp"
#include "coterie/base/error.hpp"

namespace coterie::cli {
namespace {

using comm::Purpose;
constexpr std::array<Purpose, 3> kPurposes = {Purpose::kMetadata, Purpose::kDispatch,
                                              Purpose::kCombine};

/// Bytes of all ranks on rank 0, in rank order; on other ranks nothing.
std::vector<std::vector<std::byte>> gather(comm::Communicator& communicator,
                                           std::span<const std::byte> mine) {
  const auto size = static_cast<std::size_t>(communicator.size());
  const std::int64_t my_bytes = std::ssize(mine);
  std::vector<std::int64_t> bytes(size);
  communicator.all_gather(std::as_bytes(std::span(&my_bytes, 1)),
                          std::as_writable_bytes(std::span(bytes)), Purpose::kControl);
  std::vector<std::int64_t> sends(size, 0);
  sends[0] = my_bytes;
  const bool is_root = communicator.rank() == 0;
  if (!is_root) {
    std::ranges::fill(bytes, 0);
  }
  std::int64_t total = 0;
  for (const std::int64_t count : bytes) {
    total += count;
  }
  std::vector<std::byte> received(static_cast<std::size_t>(total));
  communicator.all_to_all(mine, sends, received, bytes, Purpose::kControl);
  std::vector<std::vector<std::byte>> parts;
  auto at = received.begin();
  for (const std::int64_t count : bytes) {
    parts.emplace_back(at, at + count);
    at += count;
  }
  return parts;
}

/// Counts of one rank that all ranks get to see.
struct RankCounts {
  std::array<std::uint64_t, 3> sent{};
  std::array<std::uint64_t, 3> predicted{};  ///< [2], combine, needs the other ranks' counts
  std::uint64_t num_rows = 0;                ///< (token, device) pairs of all layers
  std::uint64_t num_tokens = 0;              ///< summed over layers
  std::vector<std::uint64_t> combine_from;   ///< [ranks]

  void add(const layer::RoutingRecord& record, std::size_t rank) {
    const exchange::HomeTraffic& traffic = record.predicted;
    combine_from.resize(traffic.combine_from.size());
    num_tokens += static_cast<std::uint64_t>(record.num_tokens);
    for (std::size_t d = 0; d < traffic.rows_to.size(); ++d) {
      num_rows += traffic.rows_to[d];
      if (d != rank) {
        predicted[0] += traffic.metadata_to[d];
        predicted[1] += traffic.dispatch_to[d];
        combine_from[d] += traffic.combine_from[d];
      }
    }
  }
};

void check_traffic(comm::Communicator& communicator, const RankCounts& mine,
                   ParallelRunResult& result) {
  const auto size = static_cast<std::size_t>(communicator.size());
  std::vector<std::uint64_t> row(mine.sent.begin(), mine.sent.end());
  row.insert(row.end(), mine.predicted.begin(), mine.predicted.end());
  row.insert(row.end(), {mine.num_rows, mine.num_tokens});
  const std::size_t combine_at = row.size();
  row.insert(row.end(), mine.combine_from.begin(), mine.combine_from.end());
  row.resize(combine_at + size);
  const std::size_t width = row.size();
  std::vector<std::uint64_t> all(width * size);
  communicator.all_gather(std::as_bytes(std::span(row)), std::as_writable_bytes(std::span(all)),
                          Purpose::kControl);
  std::uint64_t num_rows = 0;
  std::uint64_t num_tokens = 0;
  for (std::size_t r = 0; r < size; ++r) {
    std::array<std::uint64_t, 3> predicted = {all[r * width + 3], all[r * width + 4], 0};
    for (std::size_t home = 0; home < size; ++home) {
      predicted[2] += all[home * width + combine_at + r];
    }
    for (std::size_t p = 0; p < 3; ++p) {
      result.traffic.sent[p] += all[r * width + p];
      result.traffic.predicted[p] += predicted[p];
      result.traffic.equal_on_every_rank &= all[r * width + p] == predicted[p];
    }
    num_rows += all[r * width + 6];
    num_tokens += all[r * width + 7];
  }
  if (num_tokens > 0) {
    result.replicas_per_token = static_cast<double>(num_rows) / static_cast<double>(num_tokens);
  }
}

/// One rank's part of the run.
class RankRun {
 public:
  RankRun(const ParallelRunOptions& options, comm::Communicator& communicator)
      : options_(options),
        communicator_(communicator),
        pool_(options.num_threads),
        decoder_(options.model, decoder_options(true, true)) {
    if (options.check && communicator.rank() == 0) {
      check_.emplace(options.model, decoder_options(false, true), decoder_options(false, false));
    }
    communicator.reset_traffic();
  }

  /// Sequences [first, first + step.size()) of all; adds what it finds.
  void run_step(std::span<const std::vector<std::int32_t>> step, std::int64_t first,
                ParallelRunResult& result) {
    Sequences mine;
    for (auto s = static_cast<std::size_t>(communicator_.rank()); s < step.size();
         s += static_cast<std::size_t>(communicator_.size())) {
      mine.push_back(step[s]);
    }
    const comm::Traffic before = communicator_.traffic();
    StepOutput output;
    output.logits = decoder_.logits(mine, [&](const models::LayerRouting& routing) {
      output.routing.add(routing);
      counts_.add(*routing.record, static_cast<std::size_t>(communicator_.rank()));
    });
    for (std::size_t p = 0; p < kPurposes.size(); ++p) {
      counts_.sent[p] +=
          communicator_.traffic().sent_for(kPurposes[p]) - before.sent_for(kPurposes[p]);
    }
    communicator_.barrier();
    const auto start = std::chrono::steady_clock::now();
    const Matrix<float> again = decoder_.logits(mine);
    communicator_.barrier();
    result.seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    output.is_repeated =
        std::ranges::equal(std::as_bytes(output.logits.values()), std::as_bytes(again.values()));
    if (options_.check) {
      const auto parts = gather(communicator_, output.pack());
      if (check_) {
        check_->compare(step, first, parts, result.logits);
      }
    }
  }

  void finish(ParallelRunResult& result) {
    check_traffic(communicator_, counts_, result);
    if (check_) {
      result.logits.digest = check_->digest();
    }
  }

 private:
  models::DecoderOptions decoder_options(bool on_ranks, bool placed) {
    models::DecoderOptions options;
    options.weight_type = options_.weight_type;
    options.execution.threads = &pool_;
    if (placed) {
      options.placement = options_.placement;
    }
    if (on_ranks) {
      options.communicator = &communicator_;
      options.exchange.form = options_.form;
    }
    return options;
  }

  const ParallelRunOptions& options_;
  comm::Communicator& communicator_;
  kernels::Threads pool_;
  models::Decoder decoder_;
  std::optional<OneProcessCheck> check_;  // on rank 0
  RankCounts counts_;
};

}  // namespace

std::vector<std::string> complaints(const ParallelRunResult& result, kernels::DType weight_type) {
  std::vector<std::string> list;
  if (!result.traffic.equal_on_every_rank) {
    list.emplace_back("bytes sent differ from the prediction");
  }
  if (!result.checked) {
    return list;
  }
  const LogitsCheck& logits = result.logits;
  if (!logits.same_placement_bit_equal) {
    list.emplace_back("logits differ from those of one process with the same placement");
  }
  if (!logits.runs_bit_identical) {
    list.emplace_back("two runs gave different logits");
  }
  if (weight_type == kernels::DType::kFloat32 &&
      logits.max_difference_before_flips > kLogitLimit * logits.max_abs_logit) {
    list.push_back(join_message("logits differ from one process by ",
                                logits.max_difference_before_flips, ", more than ", kLogitLimit,
                                " of the largest, ", logits.max_abs_logit));
  }
  const auto clear = std::ranges::count_if(logits.flips, [](const RoutingFlip& flip) {
    return !flip.follows && flip.margin >= kNearTie;
  });
  if (clear > 0) {
    list.push_back(join_message(clear, " tokens chose other experts without a near tie"));
  }
  return list;
}

ParallelRunResult run_parallel(const ParallelRunOptions& options, const Sequences& sequences,
                               comm::Communicator& communicator, Progress& progress) {
  ParallelRunResult result;
  result.num_ranks = communicator.size();
  result.engine = communicator.name();
  result.checked = options.check;
  result.num_sequences = std::ssize(sequences);
  for (const auto& sequence : sequences) {
    result.num_tokens += std::ssize(sequence);
  }
  RankRun run(options, communicator);
  progress.begin("run", result.num_sequences);
  for (std::int64_t first = 0; first < result.num_sequences; first += options.batch) {
    const std::int64_t count = std::min(options.batch, result.num_sequences - first);
    run.run_step(std::span(sequences).subspan(static_cast<std::size_t>(first),
                                              static_cast<std::size_t>(count)),
                 first, result);
    progress.update(first + count);
  }
  run.finish(result);
  progress.end();
  return result;
}

}  // namespace coterie::cli
