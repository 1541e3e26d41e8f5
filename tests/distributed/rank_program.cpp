// SPDX-License-Identifier: Apache-2.0
// One rank of the tests of this folder: `rank_program SCENARIO`. Ends with the exit code of what it
// throws; a scenario checks its own results.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"
#include "coterie/run/comm/comm.hpp"

namespace coterie::comm {
namespace {

using Bytes = std::vector<std::byte>;
using Sizes = std::vector<std::int64_t>;
using std::chrono::milliseconds;

/// What a rank saw: comparable with what the same rank sees elsewhere.
struct Seen {
  std::uint64_t checksum = 0;
  Traffic traffic;
  bool operator==(const Seen&) const = default;
};

void mix(std::uint64_t& checksum, const Bytes& bytes) {
  for (const std::byte b : bytes) {
    checksum = (checksum ^ static_cast<std::uint64_t>(b)) * 0x100000001b3ULL;
  }
}

Bytes random_bytes(Random& random, std::int64_t count) {
  Bytes bytes(static_cast<std::size_t>(count));
  for (std::byte& b : bytes) {
    b = static_cast<std::byte>(random.next() & 0xff);
  }
  return bytes;
}

/// [size][size] sizes that all ranks draw alike: half of them zero, few large.
std::vector<Sizes> draw_sizes(Random& shared, int size) {
  std::vector<Sizes> sizes(static_cast<std::size_t>(size), Sizes(static_cast<std::size_t>(size)));
  for (Sizes& row : sizes) {
    for (std::int64_t& count : row) {
      const std::uint64_t kind = shared.below(40);
      const std::uint64_t bound = kind == 0 ? 300'000 : kind < 4 ? 10'000 : 300;
      count = kind >= 20 ? 0 : static_cast<std::int64_t>(shared.below(bound));
    }
  }
  return sizes;
}

/// Many rounds of every collective on data that depend on the rank alone.
Seen collectives(Communicator& comm, int num_rounds) {
  comm.reset_traffic();
  const auto me = static_cast<std::size_t>(comm.rank());
  Random shared(11);
  Random own(12, me);
  Seen seen;
  for (int round = 0; round < num_rounds; ++round) {
    const std::vector<Sizes> sizes = draw_sizes(shared, comm.size());
    std::int64_t num_send = 0;
    std::int64_t num_receive = 0;
    Sizes receive_bytes;
    for (std::size_t r = 0; r < sizes.size(); ++r) {
      num_send += sizes[me][r];
      receive_bytes.push_back(sizes[r][me]);
      num_receive += sizes[r][me];
    }
    const Bytes send = random_bytes(own, num_send);
    Bytes receive(static_cast<std::size_t>(num_receive));
    comm.all_to_all(send, sizes[me], receive, receive_bytes, Purpose::kDispatch);
    mix(seen.checksum, receive);
    const auto share = static_cast<std::int64_t>(shared.below(9000));
    Bytes all(static_cast<std::size_t>(share) * sizes.size());
    comm.all_gather(random_bytes(own, share), all, Purpose::kMetadata);
    mix(seen.checksum, all);
    const int root = static_cast<int>(shared.below(sizes.size()));
    Bytes data = random_bytes(own, static_cast<std::int64_t>(shared.below(6000)));
    comm.broadcast(data, root, Purpose::kControl);
    mix(seen.checksum, data);
    comm.barrier();
  }
  seen.traffic = comm.traffic();
  return seen;
}

/// Real ranks see what the ranks of the fake see, and count the same bytes.
void compare_with_fake(Communicator& comm) {
  constexpr int kRounds = 200;
  const Seen mine = collectives(comm, kRounds);
  Seen fake;
  run_ranks(comm.size(), [&](Communicator& rank) {
    const Seen seen = collectives(rank, kRounds);
    if (rank.rank() == comm.rank()) {
      fake = seen;
    }
  });
  COTERIE_CHECK(mine == fake, "rank ", comm.rank(), " of ", comm.size(), ": checksum ",
                mine.checksum, ", the fake has ", fake.checksum, "; collectives ",
                mine.traffic.num_collectives, ", ", fake.traffic.num_collectives);
}

/// Parts, parts of parts, and the whole in turn see what they see in the fake.
Seen parts(Communicator& comm) {
  const auto pairs = comm.split(comm.rank() / 2);
  const auto stripes = comm.split(comm.rank() % 2);
  const auto alone = pairs->split(comm.rank() % 2);
  COTERIE_CHECK(alone->size() == 1, alone->size());
  std::vector<int> ranks(static_cast<std::size_t>(stripes->size()));
  const int me = comm.rank();
  stripes->all_gather(std::as_bytes(std::span(&me, 1)), std::as_writable_bytes(std::span(ranks)),
                      Purpose::kControl);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    COTERIE_CHECK(ranks[i] == static_cast<int>(2 * i) + me % 2, "stripe of rank ", me);
  }
  Seen seen;
  for (Communicator* group : {pairs.get(), &comm, stripes.get(), alone.get(), &comm, pairs.get()}) {
    const Seen part = collectives(*group, 10);
    seen.checksum = seen.checksum * 31 + part.checksum;
    seen.traffic.num_collectives += part.traffic.num_collectives;
    seen.traffic.bytes_sent[0] += part.traffic.sent_for(Purpose::kDispatch);
  }
  return seen;
}

void compare_parts_with_fake(Communicator& comm) {
  const Seen mine = parts(comm);
  Seen fake;
  run_ranks(comm.size(), [&](Communicator& rank) {
    const Seen seen = parts(rank);
    if (rank.rank() == comm.rank()) {
      fake = seen;
    }
  });
  COTERIE_CHECK(mine == fake, "rank ", comm.rank(), ": checksum ", mine.checksum, ", fake ",
                fake.checksum);
}

/// Rank 1 fails in its part; the others wait in theirs.
void part_throws(Communicator& comm) {
  const auto pairs = comm.split(comm.rank() / 2);
  const auto stripes = comm.split(comm.rank() % 2);
  pairs->barrier();
  if (comm.rank() == 1) {
    fail(ErrorCode::kInfeasible, "no room on device 1");
  }
  stripes->barrier();
  pairs->barrier();
  stripes->barrier();
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// A rank that comes late is waited for, without holding a core.
void late_rank(Communicator& comm) {
  comm.barrier();
  const double before = cpu_seconds();
  if (comm.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(3));
  }
  comm.barrier();
  if (comm.rank() == 0) {
    std::printf("cpu_ms %.0f\n", (cpu_seconds() - before) * 1e3);
  }
  static_cast<void>(collectives(comm, 3));
}

/// The first rank is through before the others have begun to receive.
void early_exit(Communicator& comm) {
  constexpr std::int64_t kBytes = 200'000;
  Bytes all(static_cast<std::size_t>(kBytes * comm.size()));
  if (comm.rank() != 0) {
    std::this_thread::sleep_for(milliseconds(500));
  }
  const Bytes mine(kBytes, static_cast<std::byte>(comm.rank() + 1));
  comm.all_gather(mine, all, Purpose::kMetadata);
  if (comm.rank() != 0) {
    std::this_thread::sleep_for(milliseconds(500));
  }
  COTERIE_CHECK(all[0] == std::byte{1}, "rank 0's data are lost");
}

void mismatch(Communicator& comm) {
  const auto size = static_cast<std::size_t>(comm.size());
  Sizes send(size, 8);
  const Sizes receive(size, 8);
  if (comm.rank() == 1) {
    send[0] = 12;
  }
  const Bytes out(8 * size + (comm.rank() == 1 ? 4 : 0));
  Bytes in(8 * size);
  comm.all_to_all(out, send, in, receive, Purpose::kDispatch);
}

void different_calls(Communicator& comm) {
  if (comm.rank() == 0) {
    comm.barrier();
  } else {
    comm.all_gather({}, {}, Purpose::kControl);
  }
}

void throws(Communicator& comm) {
  comm.barrier();
  if (comm.rank() == 1) {
    fail(ErrorCode::kInfeasible, "no room on device 1");
  }
  comm.barrier();
}

void killed(Communicator& comm) {
  comm.barrier();
  if (comm.rank() == 1) {
    std::raise(SIGKILL);
  }
  comm.barrier();
}

void hangs(Communicator& comm) {
  comm.barrier();
  if (comm.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(20));
  }
  comm.barrier();
}

void large_block(Communicator& comm) {
  constexpr std::size_t kBytes = (std::size_t{1} << 31) + 12345;
  Bytes data(kBytes);
  if (comm.rank() == 0) {
    for (std::size_t i = 0; i < kBytes; i += 4096) {
      data[i] = static_cast<std::byte>((i / 4096) % 251);
    }
    data.back() = std::byte{77};
  }
  comm.broadcast(data, 0, Purpose::kDispatch);
  for (std::size_t i = 0; i + 1 < kBytes; i += 4096) {
    COTERIE_CHECK(data[i] == static_cast<std::byte>((i / 4096) % 251), "byte ", i);
  }
  COTERIE_CHECK(data.back() == std::byte{77}, "last byte");
}

/// Median time of one call, for people.
void speed(Communicator& comm) {
  for (const std::int64_t num_bytes : {0, 1024, 65536, 1 << 20, 16 << 20}) {
    const auto size = static_cast<std::size_t>(comm.size());
    const Sizes sizes(size, num_bytes);
    const Bytes send(static_cast<std::size_t>(num_bytes) * size, std::byte{1});
    Bytes receive(send.size());
    std::vector<double> times;
    for (int i = 0; i < 21; ++i) {
      const auto start = std::chrono::steady_clock::now();
      comm.all_to_all(send, sizes, receive, sizes, Purpose::kDispatch);
      times.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::ranges::sort(times);
    if (comm.rank() == 0) {
      std::printf("all_to_all %d ranks, %ld bytes a pair: %.0f us\n", comm.size(),
                  static_cast<long>(num_bytes), times[10] * 1e6);
    }
  }
}

const std::map<std::string, std::function<void(Communicator&)>> kScenarios = {
    {"collectives", compare_with_fake},
    {"late", late_rank},
    {"early", early_exit},
    {"mismatch", mismatch},
    {"different_calls", different_calls},
    {"throws", throws},
    {"parts", compare_parts_with_fake},
    {"part_throws", part_throws},
    {"killed", killed},
    {"hangs", hangs},
    {"large", large_block},
    {"speed", speed},
    {"nothing", [](Communicator&) {}},
};

int run(const std::string& scenario) {
  GroupOptions options;
  const auto report = [&](int rank, ErrorCode code, const std::string& message) {
    record_rank_failure({rank, code, message});
    std::fprintf(stderr, "rank %d: %s\n", rank, message.c_str());
    return exit_code_of(code);
  };
  try {
    options.environment = read_rank_environment();
    options.engine = "mpi";
    options.timeout = milliseconds(scenario == "hangs" ? 1000 : 60'000);
    int code = 0;
    options.on_failure = [&](int rank, const std::exception& error) {
      const auto* own = dynamic_cast<const Error*>(&error);
      code = report(rank, own != nullptr ? own->code() : ErrorCode::kInternal, error.what());
    };
    try {
      run_in_group(options, kScenarios.at(scenario));
    } catch (const std::exception&) {
      if (code == 0) {
        throw;
      }
    }
    return code;
  } catch (const Error& error) {
    return report(options.environment.rank, error.code(), error.what());
  }
}

}  // namespace
}  // namespace coterie::comm

int main(int argc, char** argv) {
  return argc == 2 ? coterie::comm::run(argv[1]) : 64;
}
