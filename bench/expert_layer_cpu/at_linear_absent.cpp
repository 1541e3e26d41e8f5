// SPDX-License-Identifier: Apache-2.0
#include "bench/expert_layer_cpu/training.hpp"

namespace coterie::bench {

struct AtLinearLayer::State {};

bool AtLinearLayer::is_available() {
  return false;
}
std::string AtLinearLayer::version() {
  return "not in this build";
}
AtLinearLayer::AtLinearLayer(const Layer& /*layer*/, int /*num_threads*/) : state_(nullptr) {}
AtLinearLayer::~AtLinearLayer() = default;
void AtLinearLayer::run() {}
double AtLinearLayer::difference() {
  return 0.0;
}

struct AtLinearStep::State {};
AtLinearStep::AtLinearStep(const TrainingStep& /*step*/, int /*num_threads*/) : state_(nullptr) {}
AtLinearStep::~AtLinearStep() = default;
void AtLinearStep::run() {}
double AtLinearStep::difference() {
  return 0.0;
}

}  // namespace coterie::bench
