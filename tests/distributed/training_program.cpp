// SPDX-License-Identifier: Apache-2.0
// One rank of a training run: `training_program FAMILY data model expert expert_shard pipeline`.
// Ends with 0 if the ten losses are the golden ones.
#include <cmath>
#include <cstdio>
#include <string>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"
#include "tests/folders.hpp"
#include "tests/models/training_case.hpp"

namespace coterie::models {
namespace {

void run(comm::Communicator& world, const std::string& family,
         const parallel::LayoutOptions& layout) {
  TrainingRun run{tiny_config(family), tiny_options(), layout};
  run.options.backward_chunks = 2;
  const std::vector<double> losses = train(world, run);
  const Json golden = read_json_file(tests::source_dir() / "tests/golden/training_losses.json");
  const auto expected = golden.at(family).get<std::vector<double>>();
  for (std::size_t step = 0; step < expected.size(); ++step) {
    COTERIE_CHECK(std::abs(losses[step] - expected[step]) < 1e-9 * expected[step], "step ", step,
                  ": loss ", losses[step], ", golden ", expected[step]);
  }
}

int program(char** arguments) {
  comm::GroupOptions options;
  options.engine = "mpi";
  options.timeout = std::chrono::minutes(2);
  try {
    options.environment = comm::read_rank_environment();
    const auto number = [&](int i) { return std::stoi(arguments[i]); };
    const parallel::LayoutOptions layout{number(2), number(3), number(4), number(5), number(6)};
    comm::run_in_group(options,
                       [&](comm::Communicator& world) { run(world, arguments[1], layout); });
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", options.environment.rank, error.what());
    return 1;
  }
}

}  // namespace
}  // namespace coterie::models

int main(int argc, char** argv) {
  return argc == 7 ? coterie::models::program(argv) : 64;
}
