// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/profiling/measure.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <thread>
#include <utility>

#include "coterie/base/error.hpp"

namespace coterie::profiling {

double largest_of(comm::Communicator& group, double value) {
  std::vector<double> all(static_cast<std::size_t>(group.size()));
  group.all_gather(std::as_bytes(std::span(&value, 1)), std::as_writable_bytes(std::span(all)),
                   comm::Purpose::kControl);
  return *std::ranges::max_element(all);
}

double median_of(std::vector<double> values) {
  COTERIE_REQUIRE(!values.empty(), "median of nothing");
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

namespace {

/// Bytes that each of `num_ranks` equal parts has; at least one, so that something travels.
std::size_t part_of(double size, int num_ranks) {
  return static_cast<std::size_t>(std::max(1.0, std::round(size / num_ranks)));
}

}  // namespace

std::vector<cost::Sample> measure_operation(comm::Communicator& group,
                                            std::span<const double> sizes,
                                            const std::function<void(double size)>& run,
                                            const MeasureOptions& options, const Clock& clock) {
  COTERIE_REQUIRE(options.repeats >= 1 && options.warm_ups >= 0, "measure: ", options.repeats,
                  " repeats, ", options.warm_ups, " warm-ups");
  for (const double size : sizes) {
    COTERIE_REQUIRE(std::isfinite(size) && size > 0, "measure: size ", size, " is not positive");
  }
  std::vector<cost::Sample> samples;
  for (const double size : sizes) {
    std::vector<double> times;
    for (std::int32_t i = 0; i < options.warm_ups + options.repeats; ++i) {
      group.barrier();
      const double start_s = clock();
      run(size);
      const double time_s = largest_of(group, clock() - start_s);
      if (i >= options.warm_ups) {
        times.push_back(time_s);
      }
    }
    samples.push_back({size, median_of(std::move(times))});
  }
  return samples;
}

cost::PairMeasurement measure_pair(comm::Communicator& group, const std::function<void()>& a,
                                   const std::function<void()>& b, const MeasureOptions& options,
                                   const Clock& clock) {
  COTERIE_REQUIRE(options.repeats >= 1, "measure: ", options.repeats, " repeats");
  std::vector<double> alone_a;
  std::vector<double> alone_b;
  std::vector<double> end_a;
  std::vector<double> end_b;
  const auto time = [&](const std::function<void()>& task) {
    group.barrier();
    const double start_s = clock();
    task();
    return largest_of(group, clock() - start_s);
  };
  for (std::int32_t i = 0; i < options.repeats; ++i) {
    alone_a.push_back(time(a));
    alone_b.push_back(time(b));
    group.barrier();
    const double start_s = clock();
    double a_s = 0;
    std::exception_ptr failure;
    std::thread thread([&] {
      try {
        a();
      } catch (...) {
        failure = std::current_exception();
      }
      a_s = clock() - start_s;
    });
    double b_s = 0;
    try {
      b();
      b_s = clock() - start_s;
    } catch (...) {
      thread.join();
      throw;
    }
    thread.join();
    if (failure != nullptr) {
      std::rethrow_exception(failure);
    }
    end_a.push_back(largest_of(group, a_s));
    end_b.push_back(largest_of(group, b_s));
  }
  return {median_of(alone_a), median_of(alone_b), median_of(end_a), median_of(end_b)};
}

std::vector<cost::Sample> measure_exchange(comm::Communicator& group, std::span<const double> sizes,
                                           const MeasureOptions& options, const Clock& clock) {
  std::vector<std::byte> send;
  std::vector<std::byte> receive;
  const auto run = [&](double size) {
    const std::size_t part = part_of(size, group.size());
    const std::size_t total = part * static_cast<std::size_t>(group.size());
    send.resize(std::max(send.size(), total));
    receive.resize(std::max(receive.size(), total));
    const std::vector<std::int64_t> parts(static_cast<std::size_t>(group.size()),
                                          static_cast<std::int64_t>(part));
    group.all_to_all(std::span(send).first(total), parts, std::span(receive).first(total), parts,
                     comm::Purpose::kDispatch);
  };
  return measure_operation(group, sizes, run, options, clock);
}

std::vector<cost::Sample> measure_all_gather(comm::Communicator& group,
                                             std::span<const double> sizes,
                                             const MeasureOptions& options, const Clock& clock) {
  std::vector<std::byte> send;
  std::vector<std::byte> receive;
  const auto run = [&](double size) {
    const std::size_t part = part_of(size, group.size());
    const std::size_t total = part * static_cast<std::size_t>(group.size());
    send.resize(std::max(send.size(), part));
    receive.resize(std::max(receive.size(), total));
    group.all_gather(std::span(send).first(part), std::span(receive).first(total),
                     comm::Purpose::kDispatch);
  };
  return measure_operation(group, sizes, run, options, clock);
}

}  // namespace coterie::profiling
