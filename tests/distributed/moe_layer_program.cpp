// SPDX-License-Identifier: Apache-2.0
// One rank of a trained layer: `moe_layer_program SHARDS`. Its outputs and gradients must have the
// bits that the same rank has among threads of one process.
#include <cstdlib>

#include "coterie/base/error.hpp"
#include "coterie/run/comm/comm.hpp"
#include "tests/run/nn/rank_cases.hpp"

namespace coterie::nn {
namespace {

void compare_with_fake(comm::Communicator& world, int num_shards) {
  for (const ExpertKind kind : {ExpertKind::kSwiGlu, ExpertKind::kGelu, ExpertKind::kCustom}) {
    if (kind == ExpertKind::kCustom && num_shards > 1) {
      continue;
    }
    for (const std::int64_t chunks : {1, 2}) {
      RankCase made;
      made.kind = kind;
      made.num_shards = num_shards;
      made.num_devices = world.size() / num_shards;
      made.num_tokens = {133, 0, 70, 9};
      made.change = [&](MoELayerOptions& options) { options.forward_chunks = chunks; };
      const Outcome got = run_rank_of(made, world);
      const auto wanted = run_ranks_of(made);
      COTERIE_CHECK(same_bits(got, wanted[static_cast<std::size_t>(world.rank())]), name_of(kind),
                    " with ", chunks, " chunks, ", num_shards, " shards: rank ", world.rank(),
                    " differs from the fake's");
    }
  }
}

}  // namespace
}  // namespace coterie::nn

int main(int argc, char** argv) {
  using namespace coterie;
  comm::GroupOptions options;
  try {
    options.environment = comm::read_rank_environment();
    comm::run_in_group(options, [&](comm::Communicator& world) {
      nn::compare_with_fake(world, argc > 1 ? std::atoi(argv[1]) : 1);
    });
  } catch (const Error& error) {
    comm::record_rank_failure({options.environment.rank, error.code(), error.what()});
    return exit_code_of(error.code());
  }
  return 0;
}
