// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "coterie/base/error.hpp"
#include "coterie/run/device/device.hpp"
#include "coterie/run/nn/nn.hpp"

namespace coterie::nn {
namespace {

// Before any test asks torch about CUDA.
const bool kHasLooked = (static_cast<void>(device::gpu_state()), true);

MoELayer layer_of(LayerPath path, at::ScalarType type, ExpertKind kind = ExpertKind::kSwiGlu) {
  MoELayerOptions options;
  options.name = "layer 3";
  options.hidden = 64;
  options.intermediate = 32;
  options.num_experts = 8;
  options.expert_kind = kind;
  options.expert_bias = kind == ExpertKind::kGeluTanh;
  options.path = path;
  options.type = type;
  options.initializer_range = 0.2;
  gates::GateOptions gate;
  gate.hidden = 64;
  gate.num_experts = 8;
  gate.top_k = 2;
  gate.initializer_range = 0.2;
  gate.balance.load_balance = 0.01;
  gate.balance.z_loss = 0.001;
  gate.type = type == at::kDouble ? gates::RouterType::kFloat64 : gates::RouterType::kFloat32;
  options.gate = gates::make_gate(gate);
  return MoELayer(options);
}

/// y, the auxiliary loss, and the gradients of x and of all parameters, on the CPU in fp64.
std::vector<at::Tensor> run(MoELayer layer, const at::Device& device, at::ScalarType type) {
  layer->to(device);
  at::manual_seed(5);
  gates::TokenBatch batch;
  batch.x =
      at::randn({75, 64}, at::kDouble).to(at::kBFloat16).to(device, type).requires_grad_(true);
  batch.sequence_offsets = {0, 30, 30, 75};
  const at::Tensor direction = at::randn({75, 64}, at::kDouble).to(device, type);
  const MoEResult result = layer->forward(batch);
  gates::RoutingStatistics statistics = result.statistics.routing;
  gates::add_counts(statistics, result.counts);
  EXPECT_EQ(statistics.num_tokens, 75);
  EXPECT_EQ(statistics.num_dropped_tokens, 0);
  std::int64_t picks = 0;
  for (const std::int64_t count : statistics.picks_per_expert) {
    picks += count;
  }
  EXPECT_EQ(picks, 150);
  std::vector<at::Tensor> inputs = layer->parameters();
  inputs.push_back(batch.x);
  std::vector<at::Tensor> found = torch::autograd::grad(
      {result.y, result.aux_loss}, inputs, {direction, at::ones_like(result.aux_loss)});
  found.push_back(result.y);
  found.push_back(result.aux_loss);
  for (at::Tensor& tensor : found) {
    tensor = tensor.detach().to(at::kCPU, at::kDouble);
  }
  return found;
}

void expect_near(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& wanted,
                 double limit, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = (got[i] - wanted[i]).norm().item<double>();
    EXPECT_LE(error, limit * wanted[i].norm().item<double>()) << what << ", tensor " << i;
  }
}

void copy_parameters(MoELayer& from, MoELayer& to) {
  const at::NoGradGuard no_grad;
  const auto source = from->parameters();
  const auto target = to->parameters();
  for (std::size_t i = 0; i < source.size(); ++i) {
    target[i].copy_(source[i]);
  }
}

TEST(GroupedMmPath, EqualsTheReferenceWithItsGradients) {
  for (const ExpertKind kind : {ExpertKind::kSwiGlu, ExpertKind::kGeluTanh}) {
    const auto wanted =
        run(layer_of(LayerPath::kReference, at::kDouble, kind), at::kCPU, at::kDouble);
    const auto got = run(layer_of(LayerPath::kGroupedMm, at::kDouble, kind), at::kCPU, at::kDouble);
    expect_near(got, wanted, 1e-12, name_of(kind));
  }
}

TEST(Device, NamesAreParsedAndRefused) {
  EXPECT_EQ(device::parse_device("cpu", "compute.device"), at::Device(at::kCPU));
  for (const char* name : {"gpu", "cuda:", "cuda:x", ""}) {
    EXPECT_THROW(static_cast<void>(device::parse_device(name, "compute.device")), Error) << name;
  }
  if (!device::gpu_state().usable) {
    EXPECT_FALSE(device::gpu_state().reason.empty());
    EXPECT_THROW(static_cast<void>(device::parse_device("cuda", "compute.device")), Error);
  }
}

/// fp64 on the CPU is the measure; bf16 values are the same numbers on both sides.
TEST(Device, LayersOnAGpuEqualTheReference) {
  if (!device::gpu_state().usable) {
    GTEST_SKIP() << device::gpu_state().reason;
  }
  const at::Device gpu = device::parse_device("cuda", "test");
  for (const ExpertKind kind : {ExpertKind::kSwiGlu, ExpertKind::kGeluTanh}) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const LayerPath path : {LayerPath::kExchange, LayerPath::kGroupedMm}) {
        MoELayer ours = layer_of(path, type, kind);
        MoELayer reference = layer_of(LayerPath::kReference, at::kDouble, kind);
        copy_parameters(ours, reference);
        const auto wanted = run(reference, at::kCPU, at::kDouble);
        const double limit = type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : 2e-2;
        expect_near(run(ours, gpu, type), wanted, limit,
                    std::string(name_of(kind)) + " " + at::toString(type));
      }
    }
  }
}

}  // namespace
}  // namespace coterie::nn
