// SPDX-License-Identifier: Apache-2.0
// expert_layer_cpu [--seconds S] [--threads N] [--only SHAPE] [--type fp32|bf16]
//                  [--pass forward|training] [--out FOLDER]
//
// How near do the CPU experts come to the machine, and how far ahead are they of at::linear called
// for each expert? Proves the results equal first. --seconds: time a case (default 1).
#include <algorithm>
#include <chrono>
#include <iostream>
#include <stdexcept>
#include <thread>

#include "bench/expert_layer_cpu/ceilings.hpp"
#include "bench/expert_layer_cpu/layer.hpp"
#include "bench/expert_layer_cpu/report.hpp"
#include "bench/expert_layer_cpu/training.hpp"

namespace coterie::bench {
namespace {

using kernels::DType;

struct Options {
  double seconds = 1.0;
  int num_threads = 2;
  std::string only;
  std::string type;
  std::string pass = "forward";
  std::string out;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--seconds") {
      options.seconds = std::stod(argv[i + 1]);
    } else if (flag == "--threads") {
      options.num_threads = std::stoi(argv[i + 1]);
    } else if (flag == "--only") {
      options.only = argv[i + 1];
    } else if (flag == "--type") {
      options.type = argv[i + 1];
    } else if (flag == "--pass") {
      options.pass = argv[i + 1];
    } else if (flag == "--out") {
      options.out = argv[i + 1];
    } else {
      throw std::invalid_argument("unknown flag " + flag);
    }
  }
  return options;
}

/// Fewer experts than the models have: enough to outgrow a 32 MiB last-level cache.
std::vector<LayerShape> shapes(DType type) {
  const std::int64_t more = type == DType::kFloat32 ? 1 : 2;
  return {{"OLMoE-1B-7B", 2048, 1024, 4 * more},
          {"Qwen3-30B-A3B", 2048, 768, 6 * more},
          {"small", 128, 64, 64}};
}

/// Times `ours`, `theirs` and the ceilings in turn until `seconds` have passed.
template <class Ours, class Theirs>
void time_rounds(Case& result, const Layer& layer, double flops, const Ours& ours,
                 const Theirs& theirs, const Ceilings& ceilings, double seconds, Report& report) {
  const bool is_fp32 = layer.type() == DType::kFloat32;
  std::vector<double> time_ms, gflops, of_peak, of_bandwidth, over_at;
  const double end = now_s() + seconds;
  while (now_s() < end || time_ms.size() < 5) {
    const double peak = is_fp32 ? ceilings.fp32_gflops() : ceilings.bf16_gflops();
    const double read =
        ceilings.read_gbs(layer.gate_up(0), static_cast<std::int64_t>(layer.weight_bytes()));
    const double start = now_s();
    ours();
    const double middle = now_s();
    theirs();
    const double at_time = now_s() - middle;
    // OpenMP's threads spin for some milliseconds after each region and would share our cores.
    std::this_thread::sleep_for(std::chrono::milliseconds(AtLinearLayer::is_available() ? 20 : 0));
    const double time = middle - start;
    time_ms.push_back(1e3 * time);
    gflops.push_back(flops / time / 1e9);
    of_peak.push_back(gflops.back() / peak);
    of_bandwidth.push_back(layer.weight_bytes() / time / 1e9 / read);
    over_at.push_back(at_time / time);
    (is_fp32 ? report.fp32_gflops : report.bf16_gflops) =
        std::max(is_fp32 ? report.fp32_gflops : report.bf16_gflops, peak);
    if (layer.weight_bytes() > 64e6) {
      report.read_gbs = std::max(report.read_gbs, read);
    }
  }
  result.rounds = static_cast<int>(time_ms.size());
  result.time_ms = spread_of(time_ms);
  result.gflops = spread_of(gflops);
  result.of_peak = spread_of(of_peak);
  result.of_bandwidth = spread_of(of_bandwidth);
  result.over_at = spread_of(over_at);
}

Case case_of(const Layer& layer, const std::string& pass) {
  Case result;
  result.shape = layer.shape().name;
  result.type = layer.type() == DType::kFloat32 ? "fp32" : "bf16";
  result.pass = pass;
  result.rows_per_expert = layer.num_rows() / layer.shape().num_experts;
  return result;
}

Case measure_forward(Layer& layer, const Ceilings& ceilings, double seconds, Report& report) {
  const kernels::Execution execution{&ceilings.threads, ceilings.backend};
  layer.run(execution);
  Case result = case_of(layer, "forward");
  result.difference = layer.difference_to_reference(1);
  AtLinearLayer twin(layer, ceilings.threads.size());
  result.at_difference = twin.difference();
  const double most = layer.type() == DType::kFloat32 ? 1e-5 : 3e-2;
  if (!(result.difference <= most) || !(result.at_difference <= 6e-2)) {
    throw std::runtime_error("results differ from the reference by " +
                             std::to_string(result.difference) + ", from at::linear by " +
                             std::to_string(result.at_difference));
  }
  time_rounds(
      result, layer, layer.flops(), [&] { layer.run(execution); }, [&] { twin.run(); }, ceilings,
      seconds, report);
  return result;
}

Case measure_training(const Layer& layer, const Ceilings& ceilings, double seconds,
                      Report& report) {
  const kernels::Execution execution{&ceilings.threads, ceilings.backend};
  TrainingStep step(layer);
  step.run(execution);
  Case result = case_of(layer, "training");
  AtLinearStep twin(step, ceilings.threads.size());
  result.difference = result.at_difference = twin.difference();
  if (!(result.difference <= (layer.type() == DType::kFloat32 ? 1e-4 : 8e-2))) {
    throw std::runtime_error("gradients differ from those through at::linear by " +
                             std::to_string(result.difference));
  }
  time_rounds(
      result, layer, step.flops(), [&] { step.run(execution); }, [&] { twin.run(); }, ceilings,
      seconds, report);
  return result;
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  kernels::Threads threads(options.num_threads);
  const Ceilings ceilings{threads, resolve_backend(kernels::Backend::kAutomatic)};
  Report report;
  report.backend = ceilings.backend;
  report.num_threads = threads.size();
  const bool training = options.pass == "training";
  for (const DType type : {DType::kFloat32, DType::kBfloat16}) {
    for (const LayerShape& shape : shapes(type)) {
      if ((!options.only.empty() && options.only != shape.name) ||
          (!options.type.empty() && options.type != (type == DType::kFloat32 ? "fp32" : "bf16"))) {
        continue;
      }
      Layer layer(shape, type);
      for (const std::int64_t rows : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
        layer.set_rows(rows);
        report.cases.push_back(training
                                   ? measure_training(layer, ceilings, options.seconds, report)
                                   : measure_forward(layer, ceilings, options.seconds, report));
        std::cerr << shape.name << ", " << report.cases.back().type << ", " << rows << " rows\n";
      }
    }
  }
  std::cout << as_markdown(report);
  if (!options.out.empty()) {
    write_report(report, options.out, training ? "expert_layer_cpu_training" : "expert_layer_cpu");
  }
  return 0;
}

}  // namespace
}  // namespace coterie::bench

int main(int argc, char** argv) {
  try {
    return coterie::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "expert_layer_cpu: " << error.what() << "\n";
    return 1;
  }
}
