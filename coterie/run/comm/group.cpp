// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/comm/group.hpp"

#include <chrono>
#include <exception>
#include <thread>

#include "coterie/base/error.hpp"
#include "coterie/run/comm/engines.hpp"
#include "coterie/run/comm/single.hpp"

namespace coterie::comm {

namespace {

constexpr const char* kFake = "fake";

std::string list_engines() {
  std::string list;
  for (const std::string& name : engine_names()) {
    list += (list.empty() ? "" : ", ") + name;
  }
  return list;
}

std::unique_ptr<Communicator> make_communicator(const GroupOptions& options) {
  std::string wanted = options.engine;
  if (wanted == "automatic") {
    wanted = options.environment.size == 1 ? "single" : "mpi";
  }
  for (const Engine& engine : engines()) {
    if (engine.name == wanted) {
      return engine.make(options);
    }
  }
  fail(ErrorCode::kUnsupported, "engine '", wanted, "' is not in this build, which has ",
       list_engines());
}

/// Runs `function`; on failure tells first the caller's hook, then the other ranks.
void run_rank(const GroupOptions& options, Communicator& communicator,
              const std::function<void(Communicator&)>& function) {
  try {
    function(communicator);
  } catch (const std::exception& error) {
    const auto* own = dynamic_cast<const Error*>(&error);
    if (own != nullptr && own->code() == ErrorCode::kPeer) {
      // The launcher reads the ranks in any order: let the rank that failed first be heard first.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    if (options.on_failure) {
      options.on_failure(communicator.rank(), error);
    }
    communicator.abort(error.what());
    throw;
  }
}

}  // namespace

const std::vector<Engine>& engines() {
  static const std::vector<Engine> list = {
      {"single", make_single},
#ifdef COTERIE_HAS_MPI
      {"mpi", make_mpi},
#endif
  };
  return list;
}

std::vector<std::string> engine_names() {
  std::vector<std::string> names = {kFake};
  for (const Engine& engine : engines()) {
    names.push_back(engine.name);
  }
  return names;
}

std::unique_ptr<Communicator> make_single(const GroupOptions& options) {
  COTERIE_REQUIRE(options.environment.size == 1, "engine 'single' is for one rank, but ",
                  name_of(options.environment.launcher), " started ", options.environment.size);
  return std::make_unique<SingleCommunicator>();
}

void run_in_group(const GroupOptions& options, const std::function<void(Communicator&)>& function) {
  if (options.engine == kFake) {
    run_ranks(
        options.num_fake_ranks,
        [&](Communicator& communicator) { run_rank(options, communicator, function); },
        options.timeout);
    return;
  }
  const std::unique_ptr<Communicator> communicator = make_communicator(options);
  run_rank(options, *communicator, function);
}

}  // namespace coterie::comm
