// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/exchange_cpu/workload.hpp"
#include "coterie/base/json.hpp"
#include "coterie/run/comm/comm.hpp"

namespace coterie::bench {

/// One way to exchange.
struct Way {
  std::string placement_name;
  placement::LayerPlacement placement;
  exchange::ExchangeOptions options;
};

/// What one way cost in one group; bytes of all ranks together.
struct TrialResult {
  std::uint64_t metadata_bytes = 0;
  std::uint64_t dispatch_bytes = 0;
  std::uint64_t combine_bytes = 0;
  std::uint64_t most_bytes_of_rank = 0;  ///< sent by the busiest rank
  double rows_per_token = 0;
  std::vector<double> times_ms;  ///< one a repeat, barrier to barrier
};

/// Proves on this rank that the way gives the bits of one process that stands for all devices, and
/// that the traffic counter shows the predicted bytes; throws kInternal otherwise. Then times it
/// `num_repeats` times. Experts copy their rows: only the exchange is timed.
class Trial {
 public:
  Trial(Way way, const Workload& workload, std::int64_t hidden, comm::Communicator& communicator);
  /// The rows of y, bf16 bits.
  const std::vector<std::uint16_t>& prove();
  void time_once();
  [[nodiscard]] const TrialResult& result() const { return result_; }
  [[nodiscard]] const Way& way() const { return way_; }

 private:
  std::vector<std::uint16_t> run(exchange::Exchange& exchange);

  Way way_;
  const Workload& workload_;
  std::int64_t hidden_;
  comm::Communicator& communicator_;
  exchange::PlacementIndex index_;
  exchange::Exchange exchange_;
  exchange::ByteBuffer outputs_;
  std::vector<std::uint16_t> y_;
  TrialResult result_;
};

/// Median of a list that is not empty.
double median(std::vector<double> values);

Json to_json(const Way& way, const TrialResult& result);

}  // namespace coterie::bench
