// SPDX-License-Identifier: Apache-2.0
#include "bench/exchange_cpu/trial.hpp"

#include <algorithm>
#include <chrono>

#include "coterie/base/error.hpp"

namespace coterie::bench {

using comm::Purpose;
using kernels::DType;

Trial::Trial(Way way, const Workload& workload, std::int64_t hidden,
             comm::Communicator& communicator)
    : way_(std::move(way)),
      workload_(workload),
      hidden_(hidden),
      communicator_(communicator),
      index_(way_.placement),
      exchange_(index_, way_.options, &communicator, "exchange_cpu") {}

std::vector<std::uint16_t> Trial::run(exchange::Exchange& exchange) {
  const RankTokens& tokens = workload_.ranks[static_cast<std::size_t>(communicator_.rank())];
  std::vector<std::uint16_t> y(tokens.x.size());
  exchange.dispatch({tokens.x.data(), tokens.num_tokens, hidden_, hidden_, DType::kBfloat16},
                    tokens.routing());
  for (const std::int32_t device : exchange.local_devices()) {
    for (std::int64_t part = 0; part < exchange.num_parts(device); ++part) {
      const exchange::DeviceWork work = exchange.work(device, part);
      const auto outputs = outputs_.resize_rows(std::ssize(work.row_of), hidden_, DType::kFloat32,
                                                /*poison=*/false);
      kernels::gather_rows(work.rows, work.row_of, outputs);
      exchange.take_back(outputs);
    }
  }
  exchange.combine({y.data(), tokens.num_tokens, hidden_, hidden_, DType::kBfloat16});
  return y;
}

const std::vector<std::uint16_t>& Trial::prove() {
  communicator_.reset_traffic();
  y_ = run(exchange_);
  const comm::Traffic traffic = communicator_.traffic();
  exchange::Exchange alone(index_, way_.options, nullptr, "one process");
  COTERIE_CHECK(run(alone) == y_, "rank ", communicator_.rank(), ", ", way_.placement_name,
                ": other bits than one process");

  std::vector<exchange::TokenRouting> routings;
  std::uint64_t num_rows = 0;
  std::uint64_t num_tokens = 0;
  for (const RankTokens& tokens : workload_.ranks) {
    routings.push_back(tokens.routing());
    num_tokens += static_cast<std::uint64_t>(tokens.num_tokens);
    const auto of_home = exchange::predict_home_traffic(routings.back(), index_,
                                                        {hidden_, DType::kBfloat16, way_.options});
    for (const std::uint64_t rows : of_home.rows_to) {
      num_rows += rows;
    }
  }
  const auto predicted =
      exchange::predict_traffic(routings, index_, {hidden_, DType::kBfloat16, way_.options});
  for (std::int32_t rank = 0; rank < index_.num_devices(); ++rank) {
    const std::uint64_t metadata = exchange::bytes_leaving(predicted.metadata, rank);
    const std::uint64_t dispatch = exchange::bytes_leaving(predicted.dispatch, rank);
    const std::uint64_t combine = exchange::bytes_leaving(predicted.combine, rank);
    if (rank == communicator_.rank()) {
      COTERIE_CHECK(traffic.sent_for(Purpose::kMetadata) == metadata &&
                        traffic.sent_for(Purpose::kDispatch) == dispatch &&
                        traffic.sent_for(Purpose::kCombine) == combine,
                    "rank ", rank, ", ", way_.placement_name,
                    ": the traffic counter shows other bytes than were predicted");
    }
    result_.metadata_bytes += metadata;
    result_.dispatch_bytes += dispatch;
    result_.combine_bytes += combine;
    result_.most_bytes_of_rank =
        std::max(result_.most_bytes_of_rank, metadata + dispatch + combine);
  }
  result_.rows_per_token = static_cast<double>(num_rows) / static_cast<double>(num_tokens);
  return y_;
}

void Trial::time_once() {
  communicator_.barrier();
  const auto start = std::chrono::steady_clock::now();
  run(exchange_);
  communicator_.barrier();
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  result_.times_ms.push_back(time.count());
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Json to_json(const Way& way, const TrialResult& result) {
  Json json;
  json["placement"] = way.placement_name;
  json["form"] = name_of(way.options.form);
  json["partial_sums"] = way.options.partial_type == DType::kFloat32 ? "float32" : "bfloat16";
  json["rows_per_token"] = result.rows_per_token;
  json["metadata_bytes"] = result.metadata_bytes;
  json["dispatch_bytes"] = result.dispatch_bytes;
  json["combine_bytes"] = result.combine_bytes;
  json["most_bytes_of_rank"] = result.most_bytes_of_rank;
  json["median_ms"] = median(result.times_ms);
  json["times_ms"] = result.times_ms;
  return json;
}

}  // namespace coterie::bench
