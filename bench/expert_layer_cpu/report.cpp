// SPDX-License-Identifier: Apache-2.0
#include "bench/expert_layer_cpu/report.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <iomanip>
#include <memory>
#include <sstream>

#include "bench/expert_layer_cpu/layer.hpp"
#include "coterie/base/json.hpp"

namespace coterie::bench {
namespace {

std::string first_line_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::array<char, 256> line{};
  if (!pipe || std::fgets(line.data(), line.size(), pipe.get()) == nullptr) {
    return "unknown";
  }
  std::string text(line.data());
  text.erase(std::find(text.begin(), text.end(), '\n'), text.end());
  return text;
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string name = "unknown", family = "?", model = "?";
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const auto value = [&] { return line.substr(line.find(':') + 2); };
    if (line.starts_with("model name")) {
      name = value();
    } else if (line.starts_with("cpu family")) {
      family = value();
    } else if (line.starts_with("model\t")) {
      model = value();
    }
  }
  return name + ", family " + family + " model " + model;
}

std::string commit() {
  return first_line_of("git -C '" COTERIE_SOURCE_DIR "' describe --always --dirty 2>/dev/null");
}

Json to_json(const Spread& s) {
  return {{"low", s.low}, {"median", s.median}, {"high", s.high}, {"best", s.best}};
}

std::string percent(const Spread& s) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(0) << 100 * s.median << " (" << 100 * s.low << "-"
      << 100 * s.high << "), best " << 100 * s.best;
  return out.str();
}

}  // namespace

Spread spread_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double share) {
    return samples[static_cast<std::size_t>(share * static_cast<double>(samples.size() - 1) + 0.5)];
  };
  return {at(0.25), at(0.5), at(0.75), samples.back()};
}

std::string as_markdown(const Report& report) {
  std::ostringstream out;
  out << "# CPU experts against the machine and at::linear\n\n"
      << "Machine: " << processor() << "; " << report.num_threads << " threads; back end "
      << name_of(report.backend) << "; torch " << AtLinearLayer::version() << "; commit "
      << commit() << ". Ceilings (best seen): fp32 " << std::fixed << std::setprecision(1)
      << report.fp32_gflops << " GFLOP/s, bf16 " << report.bf16_gflops << " GFLOP/s, read "
      << report.read_gbs
      << " GB/s.\n\nEach round times the layer (gather, gate and up, SwiGLU, down), at::linear for "
         "each expert, and the ceilings, one after the other; ratios are taken within a round. "
         "Shown: "
         "median (quartiles), best. \"diff\": largest difference to the reference as a share of "
         "the "
         "outputs' root mean square; for training steps, of gradients to those of PyTorch's "
         "autograd through at::linear, over the gradient's size plus the root mean square.\n\n"
      << "| shape | type | pass | rows/expert | ms | GFLOP/s | % of peak | % of read bandwidth | x "
         "at::linear "
         "| diff | rounds |\n|---|---|---|--:|--:|--:|---|---|---|--:|--:|\n";
  for (const Case& c : report.cases) {
    out << "| " << c.shape << " | " << c.type << " | " << c.pass << " | " << c.rows_per_expert
        << " | " << std::setprecision(3) << c.time_ms.median << " | " << std::setprecision(1)
        << c.gflops.median << " | " << percent(c.of_peak) << " | " << percent(c.of_bandwidth)
        << " | " << std::setprecision(2) << c.over_at.median << " (" << c.over_at.low << "-"
        << c.over_at.high << ") | " << std::scientific << std::setprecision(1) << c.difference
        << std::fixed << " | " << c.rounds << " |\n";
  }
  return out.str();
}

void write_report(const Report& report, const std::filesystem::path& folder,
                  const std::string& name) {
  Json cases = Json::array();
  for (const Case& c : report.cases) {
    cases.push_back({{"shape", c.shape},
                     {"type", c.type},
                     {"pass", c.pass},
                     {"rows_per_expert", c.rows_per_expert},
                     {"rounds", c.rounds},
                     {"difference_to_reference", c.difference},
                     {"difference_of_at_linear", c.at_difference},
                     {"time_ms", to_json(c.time_ms)},
                     {"gflops", to_json(c.gflops)},
                     {"share_of_peak", to_json(c.of_peak)},
                     {"share_of_read_bandwidth", to_json(c.of_bandwidth)},
                     {"times_at_linear", to_json(c.over_at)}});
  }
  const Json json = {{"machine", processor()},
                     {"num_threads", report.num_threads},
                     {"backend", name_of(report.backend)},
                     {"torch", AtLinearLayer::version()},
                     {"commit", commit()},
                     {"fp32_gflops", report.fp32_gflops},
                     {"bf16_gflops", report.bf16_gflops},
                     {"read_gbs", report.read_gbs},
                     {"cases", cases}};
  write_json_file(folder / (name + ".json"), json);
  std::ofstream(folder / (name + ".md")) << as_markdown(report);
}

}  // namespace coterie::bench
