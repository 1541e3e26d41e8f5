// SPDX-License-Identifier: Apache-2.0
// The routers of transformers, computed by tests/python/make_router_cases.py.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "coterie/models/models.hpp"
#include "coterie/run/gates/gates.hpp"
#include "tests/folders.hpp"

namespace coterie::gates {
namespace {

std::vector<std::filesystem::path> case_files() {
  std::vector<std::filesystem::path> files;
  const std::filesystem::path folder = tests::binary_dir() / "router_cases";
  if (std::filesystem::is_directory(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

class RouterCase {
 public:
  explicit RouterCase(const std::filesystem::path& path) : file_(path) {}

  [[nodiscard]] bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  [[nodiscard]] at::Tensor operator[](const std::string& name) const {
    const models::TensorInfo& info = *file_.find(name);
    const auto type = info.type == models::ElementType::kF32 ? at::kFloat : at::kLong;
    at::Tensor tensor = at::empty(info.shape, type);
    const auto bytes = file_.bytes(info);
    std::copy_n(bytes.data(), bytes.size(), static_cast<std::byte*>(tensor.mutable_data_ptr()));
    return tensor;
  }
  [[nodiscard]] GateOptions options() const {
    const Json json = parse_json(file_.metadata().at("options"), file_.path().string());
    return gate_options_from_json(JsonReader(json, file_.path().string()));
  }
  [[nodiscard]] TokenBatch batch() const {
    TokenBatch batch;
    batch.x = (*this)["x"].requires_grad_(true);
    batch.is_real = (*this)["mask"].ne(0);
    const std::int64_t length = std::stoll(file_.metadata().at("sequence_length"));
    for (std::int64_t t = 0; t <= batch.num_tokens(); t += length) {
      batch.sequence_offsets.push_back(t);
    }
    return batch;
  }
  [[nodiscard]] std::shared_ptr<Gate> gate(const BalanceOptions& balance) const {
    GateOptions o = options();
    o.balance = balance;
    auto gate = make_gate(o);
    const at::NoGradGuard guard;
    gate->named_parameters()["weight"].copy_((*this)["weight"]);
    if (has("bias")) {
      gate->named_buffers()["e_score_correction_bias"].copy_((*this)["bias"]);
    }
    return gate;
  }

 private:
  models::SafetensorsFile file_;
};

/// Routing weights at their experts, [T, E].
at::Tensor dense_weights(const Routing& routing, std::int64_t num_experts) {
  const at::Tensor ids = routing.ids.to(at::kLong);
  return at::zeros({ids.size(0), num_experts}, routing.weights.options())
      .scatter_add(1, ids.clamp_min(0), routing.weights);
}

/// Largest difference over 1 + the largest value.
double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>() / (1.0 + b.abs().max().item<double>());
}

TEST(Transformers, RoutingWeightsLossesAndGradientsAreTheirs) {
  const auto files = case_files();
  if (files.empty()) {
    GTEST_SKIP() << "no cases from transformers";
  }
  EXPECT_EQ(files.size(), 10U);
  for (const std::filesystem::path& path : files) {
    SCOPED_TRACE(path.stem().string());
    const RouterCase expected(path);
    const bool has_loss = expected.has("aux");
    const auto gate = expected.gate({has_loss ? 0.5 : 0.0, 0.0, BalanceScope::kBatch});
    const TokenBatch batch = expected.batch();
    const Routing routing = gate->forward(batch);
    const at::Tensor real = batch.is_real.unsqueeze(1);
    const at::Tensor dense = dense_weights(routing, gate->options().num_experts);
    const at::Tensor wanted = expected["dense"] * real;
    EXPECT_TRUE(at::equal(dense.ne(0), wanted.ne(0))) << "other experts";
    EXPECT_LT(relative_difference(dense.detach(), wanted), 1e-6);
    EXPECT_LT(relative_difference(routing.logits.detach(), expected["logits"] * real), 1e-6);

    at::Tensor loss = (dense * at::sin(at::arange(dense.numel(), at::kFloat)).view_as(dense)).sum();
    if (has_loss) {
      EXPECT_LT(relative_difference(routing.aux_loss.detach(), 0.5 * expected["aux"]), 1e-6);
      const Routing by_sequence =
          expected.gate({1.0, 0.0, BalanceScope::kSequence})->forward(batch);
      EXPECT_LT(relative_difference(by_sequence.aux_loss.detach(), expected["aux_sequences"]),
                1e-6);
      loss = loss + routing.aux_loss;
    }
    loss.backward();
    EXPECT_LT(relative_difference(batch.x.grad(), expected["grad_x"] * real), 1e-6);
    EXPECT_LT(
        relative_difference(gate->named_parameters()["weight"].grad(), expected["grad_weight"]),
        2e-6);
  }
}

}  // namespace
}  // namespace coterie::gates
