// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <numeric>

#include "bench/placement_quality/report.hpp"
#include "bench/placement_quality/synthetic_routing.hpp"
#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::bench {
namespace {

template <typename... Values>
std::string line(const char* pattern, Values... values) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

double wall_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double cpu_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double peak_gib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1024.0 * 1024.0);  // KiB on Linux
}

void write_large_trace(const std::filesystem::path& path) {
  constexpr std::size_t kTokens = 1000000;
  constexpr std::size_t kPiece = 50000;
  routing::TraceHeader header;
  header.num_experts = 64;
  header.top_k = 8;
  header.layers.resize(16);
  std::iota(header.layers.begin(), header.layers.end(), 0);
  header.domains = {"synthetic"};
  routing::TraceWriter writer(path, header);
  std::vector<routing::TokenInfo> tokens(kPiece);
  for (std::size_t first = 0; first < kTokens; first += kPiece) {
    for (std::size_t i = 0; i < kPiece; ++i) {
      tokens[i].sequence = static_cast<std::uint32_t>((first + i) / 4096);
      tokens[i].position = static_cast<std::uint32_t>((first + i) % 4096);
    }
    writer.add_tokens(tokens);
  }
  for (std::size_t slot = 0; slot < header.layers.size(); ++slot) {
    SyntheticRouting routing(64, 8, slot % 2 == 0 ? 0.05 : 0.2, slot + 1);
    std::vector<std::uint16_t> ids;
    for (std::size_t first = 0; first < kTokens; first += kPiece) {
      ids.clear();
      routing.draw(kPiece, ids);
      writer.add_rows(slot, ids);
    }
  }
  writer.commit();
}

std::string report_trace(const std::filesystem::path& scratch, bool& passed) {
  const auto path = scratch / "placement_quality_large.trace";
  write_large_trace(path);
  placement::PlacementOptions options;
  options.num_devices = 8;
  options.load_cap = 2.0;  // the made routing is skewed by design
  options.num_threads = 2;
  const double wall = wall_s();
  const double cpu = cpu_s();
  const auto placed = placement::place_trace(*routing::open_binary_trace(path), "coterie", options,
                                             placement::FitRows::kAll);
  const double took = wall_s() - wall;
  const double took_cpu = cpu_s() - cpu;
  std::filesystem::remove(path);
  double before = 0;
  double after = 0;
  for (std::size_t i = 0; i < placed.comparisons.size(); ++i) {
    before += placed.comparisons[i].contiguous_fit.replicas / 16;
    after += placed.placement.layers[i].fit->replicas / 16;
  }
  passed = passed && took <= 60 && peak_gib() < 2;
  return line(
      "64 experts, top-8, 1M tokens, 16 layers, 8 devices, 2 threads, from a binary trace: %.1f s "
      "(%.1f s of CPU time), peak %.2f GiB resident (bars: 60 s, 2 GiB); mean C_T %.3f -> "
      "%.3f.\n\n",
      took, took_cpu, peak_gib(), before, after);
}

std::string report_many_experts(bool& passed) {
  SyntheticRouting routing(256, 8, 0.05, 1);
  std::vector<std::uint16_t> ids;
  routing.draw(230000, ids);
  auto sets = routing::make_expert_sets(ids, 8, 256);
  placement::PlacementOptions options;
  options.num_devices = 16;
  options.load_cap = 2.0;
  options.num_threads = 2;
  const double wall = wall_s();
  const double cpu = cpu_s();
  const auto placed = placement::place_layer(sets, "coterie", options);
  const double took = wall_s() - wall;
  const double took_cpu = cpu_s() - cpu;
  passed = passed && took <= 15;
  const auto contiguous = placement::contiguous_placement(256, 16);
  return line(
      "256 experts, top-8, %zu distinct sets, 16 devices, 2 threads, one layer: %.1f s (%.1f s of "
      "CPU time; bar: 15 s); C_T %.3f -> %.3f (Algorithm 1 %.3f).\n",
      sets.num_sets(), took, took_cpu, placement::measure_placement(contiguous, sets).replicas,
      placement::measure_placement(placed, sets).replicas,
      placement::measure_placement(placement::place_layer(sets, "occult", options), sets).replicas);
}

}  // namespace

std::string report_large(const std::filesystem::path& scratch, bool& passed) {
  std::string text = "\n## Large routing (made, see synthetic_routing.hpp)\n\n";
  text += report_trace(scratch, passed);
  text += report_many_experts(passed);
  return text;
}

}  // namespace coterie::bench
