// SPDX-License-Identifier: Apache-2.0
// What do one row a (token, device) and a placement save of an exchange, in bytes and in time?
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>

#include "bench/exchange_cpu/trial.hpp"
#include "coterie/base/error.hpp"

namespace coterie::bench {
namespace {

struct Arguments {
  WorkloadOptions workload;
  std::string engine = "fake";
  std::vector<std::string> placements = {"contiguous", "occult", "coterie"};
  int num_repeats = 11;
  std::string note;
  std::string out;
};

std::vector<Way> all_ways(const Arguments& arguments, const Workload& workload) {
  std::vector<Way> ways;
  placement::PlacementOptions options;
  options.num_devices = arguments.workload.num_ranks;
  for (const std::string& name : arguments.placements) {
    const auto placed =
        placement::place_layer(workload.fitted, name, options, arguments.workload.layer);
    for (const auto form :
         {exchange::ExchangeForm::kPerExpert, exchange::ExchangeForm::kPerDevice}) {
      ways.push_back({name, placed, {.form = form}});
    }
  }
  return ways;
}

void print_row(const Way& way, const TrialResult& result, std::int64_t num_tokens) {
  const auto kib_a_token = [&](std::uint64_t bytes) {
    return static_cast<double>(bytes) / 1024.0 / static_cast<double>(num_tokens);
  };
  const auto [low, high] = std::minmax_element(result.times_ms.begin(), result.times_ms.end());
  std::printf("%-12s %-10s %6.2f %9.3f %9.2f %9.2f %9.1f %8.1f .. %.1f\n",
              way.placement_name.c_str(), name_of(way.options.form), result.rows_per_token,
              kib_a_token(result.metadata_bytes), kib_a_token(result.dispatch_bytes),
              kib_a_token(result.combine_bytes), median(result.times_ms), *low, *high);
}

void report(const Arguments& arguments, const comm::Communicator& communicator,
            const std::vector<std::unique_ptr<Trial>>& trials) {
  const auto& workload = arguments.workload;
  std::printf(
      "layer %d, %d ranks over %s, %lld tokens a rank, hidden %lld, bf16 rows, fp32 sums\n"
      "equal bits and predicted bytes: proved\n\n"
      "%-12s %-10s %6s %9s %9s %9s %9s %s\n",
      workload.layer, workload.num_ranks, communicator.name().c_str(),
      static_cast<long long>(workload.tokens_per_rank), static_cast<long long>(workload.hidden),
      "placement", "form", "rows", "metadata", "dispatch", "combine", "median", "   least .. most");
  std::printf("%-12s %-10s %6s %9s %9s %9s %9s %s\n", "", "", "/token", "KiB/token", "KiB/token",
              "KiB/token", "ms", "   ms");
  Json results = Json::array();
  for (const auto& trial : trials) {
    print_row(trial->way(), trial->result(), workload.tokens_per_rank * workload.num_ranks);
    results.push_back(to_json(trial->way(), trial->result()));
  }
  if (!arguments.out.empty()) {
    Json document;
    document["question"] = "exchange_cpu";
    document["note"] = arguments.note;
    document["layer"] = workload.layer;
    document["engine"] = communicator.name();
    document["num_ranks"] = workload.num_ranks;
    document["tokens_per_rank"] = workload.tokens_per_rank;
    document["hidden"] = workload.hidden;
    document["results"] = results;
    write_json_file(arguments.out, document);
  }
}

/// The whole benchmark on one rank.
void run_rank(const Arguments& arguments, comm::Communicator& communicator) {
  const Workload workload = make_workload(arguments.workload);
  std::vector<std::unique_ptr<Trial>> trials;
  for (Way& way : all_ways(arguments, workload)) {
    trials.push_back(
        std::make_unique<Trial>(std::move(way), workload, arguments.workload.hidden, communicator));
  }
  for (std::size_t i = 0; i < trials.size(); i += 2) {
    // Both forms of a placement, the classical one first.
    const auto& classical = trials[i]->prove();
    COTERIE_CHECK(trials[i + 1]->prove() == classical, trials[i]->way().placement_name,
                  ": the forms differ");
  }
  for (int repeat = 0; repeat < arguments.num_repeats; ++repeat) {
    for (const auto& trial : trials) {
      trial->time_once();
    }
  }
  if (communicator.rank() == 0) {
    report(arguments, communicator, trials);
  }
}

Arguments parse(int argc, char** argv, bool& is_help) {
  Arguments arguments;
  auto& workload = arguments.workload;
  CLI::App app{
      "Bytes and time of one exchange, by form and placement. Under mpirun: --engine mpi."};
  app.add_option("--trace", workload.traces, "routing trace, or CSV files of expert sets")
      ->required();
  app.add_option("--layer", workload.layer, "layer of the trace");
  app.add_option("--engine", arguments.engine, "fake (ranks are threads) or mpi");
  app.add_option("--nproc", workload.num_ranks, "ranks of the fake");
  app.add_option("--tokens", workload.tokens_per_rank, "tokens a rank");
  app.add_option("--hidden", workload.hidden, "width of a row");
  app.add_option("--placement", arguments.placements, "placements to compare");
  app.add_option("--repeats", arguments.num_repeats, "timed runs of each way");
  app.add_option("--note", arguments.note, "machine, versions, commit: kept in the results");
  app.add_option("--out", arguments.out, "results as JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    is_help = app.exit(error) == 0;
    if (!is_help) {
      throw Error(ErrorCode::kBadInput, "bad arguments");
    }
  }
  return arguments;
}

void run(int argc, char** argv) {
  bool is_help = false;
  Arguments arguments = parse(argc, argv, is_help);
  if (is_help) {
    return;
  }
  comm::GroupOptions group;
  group.engine = arguments.engine;
  group.environment = comm::read_rank_environment();
  group.num_fake_ranks = arguments.workload.num_ranks;
  comm::run_in_group(group, [&](comm::Communicator& communicator) {
    Arguments own = arguments;
    own.workload.num_ranks = communicator.size();
    run_rank(own, communicator);
  });
}

}  // namespace
}  // namespace coterie::bench

int main(int argc, char** argv) {
  try {
    coterie::bench::run(argc, argv);
    return 0;
  } catch (const coterie::Error& error) {
    std::cerr << "exchange_cpu: " << error.what() << "\n";
    return coterie::exit_code_of(error.code());
  }
}
