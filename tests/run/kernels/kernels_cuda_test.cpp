// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"
#include "coterie/run/kernels/kernels.hpp"
#include "tests/run/kernels/typed_matrix.hpp"

/// The GPU twins against the reference twins. Without a GPU, what they refuse is tested alone.
namespace coterie::kernels {
namespace {

bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

#define NEEDS_GPU()                                     \
  do {                                                  \
    if (!has_gpu()) {                                   \
      GTEST_SKIP() << "this machine has no NVIDIA GPU"; \
    }                                                   \
  } while (false)

/// Device memory that begins as a copy of host elements.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& host) : size_(host.size()) {
    EXPECT_EQ(cudaMalloc(&data_, size_ * sizeof(T) + 256), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data_); }
  [[nodiscard]] T* data() { return static_cast<T*>(data_); }
  [[nodiscard]] std::vector<T> host() const {
    std::vector<T> copy(size_);
    EXPECT_EQ(cudaMemcpy(copy.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return copy;
  }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

std::vector<std::uint16_t> random_bf16(std::size_t count, std::uint64_t seed, double scale) {
  Random random(seed);
  std::vector<std::uint16_t> values(count);
  for (auto& value : values) {
    value = to_bfloat16(static_cast<float>(scale * random.normal()));
  }
  return values;
}

/// Ids without repetition, about a tenth of them absent.
std::vector<std::int32_t> random_ids(int num_tokens, int top_k, int num_experts) {
  Random random(5);
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> order(static_cast<std::size_t>(num_experts));
  for (std::size_t e = 0; e < order.size(); ++e) {
    order[e] = static_cast<std::int32_t>(e);
  }
  for (int t = 0; t < num_tokens; ++t) {
    random.shuffle(std::span(order));
    for (int j = 0; j < top_k; ++j) {
      ids.push_back(random.below(10) == 0 ? -1 : order[static_cast<std::size_t>(j)]);
    }
  }
  return ids;
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(KernelsCuda, RefusalsNameArgumentAndValue) {
  cuda::TopkGate gate;
  gate.num_experts = 8;
  gate.top_k = 9;
  EXPECT_NE(message_of([&] { cuda::topk_gate(gate, nullptr); }).find("top_k is 9"),
            std::string::npos);
  cuda::Reindex reindex;
  reindex.num_experts = 2000;
  EXPECT_NE(message_of([&] { cuda::build_reindex(reindex, nullptr); }).find("num_experts is 2000"),
            std::string::npos);
  reindex.num_experts = 8;
  reindex.top_k = 16;
  reindex.num_tokens = std::int64_t{1} << 27;
  EXPECT_NE(message_of([&] { cuda::build_reindex(reindex, nullptr); }).find("num_tokens"),
            std::string::npos);
  cuda::GatherRows gather;
  gather.row_bytes = 24;
  EXPECT_NE(message_of([&] { cuda::gather_rows(gather, nullptr); }).find("row_bytes is 24"),
            std::string::npos);
  alignas(16) std::uint16_t some[64] = {};
  cuda::GroupedDown down;
  down.down = {some, 1, 8, 8};
  down.down.scale = reinterpret_cast<const float*>(some);
  EXPECT_NE(message_of([&] { cuda::grouped_down(down, {}, nullptr); }).find("scales"),
            std::string::npos);
  down.down.scale = nullptr;
  down.hidden = {some, 1, 16, 16, DType::kBfloat16};
  EXPECT_NE(message_of([&] { cuda::grouped_down(down, {}, nullptr); }).find("16 columns"),
            std::string::npos);
}

TEST(KernelsCuda, GateEqualsReference) {
  NEEDS_GPU();
  constexpr int kTokens = 97;
  for (const int num_experts : {4, 64, 100, 1000}) {
    std::vector<float> logits(static_cast<std::size_t>(kTokens * num_experts));
    Random random(3);
    for (auto& value : logits) {
      value = std::round(static_cast<float>(random.normal()) * 8.0F) / 8.0F;  // many ties
    }
    logits[static_cast<std::size_t>(5 * num_experts + 1)] = std::nanf("");
    const int top_k = std::min(8, num_experts);
    const auto count = static_cast<std::size_t>(kTokens * top_k);
    std::vector<std::int32_t> ids(count);
    std::vector<float> weights(count);
    EXPECT_EQ(topk_gate({logits.data(), kTokens, num_experts, num_experts, DType::kFloat32},
                        {top_k, true}, ids, weights, {nullptr, Backend::kReference}),
              5);
    OnDevice<float> x(logits);
    OnDevice<std::int32_t> got_ids(std::vector<std::int32_t>(count, -7));
    OnDevice<float> got_weights(std::vector<float>(count, std::nanf("")));
    OnDevice<cuda::Faults> faults(std::vector<cuda::Faults>(1));
    cuda::topk_gate({x.data(), kTokens, num_experts, num_experts, top_k, cuda::Scores::kSoftmax,
                     true, got_ids.data(), got_weights.data(), faults.data()},
                    nullptr);
    EXPECT_EQ(got_ids.host(), ids);
    const std::vector<float> got = got_weights.host();
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_NEAR(got[i], weights[i], 1e-6);
    }
    EXPECT_NE(message_of([&] {
                cuda::check_faults(faults.data(), nullptr, top_k, "layer 3", nullptr);
              }).find("layer 3: 1 tokens have NaN"),
              std::string::npos);
  }
}

/// One layer on the GPU, step by step, each step against the reference twin of the same input.
TEST(KernelsCuda, LayerEqualsReference) {
  NEEDS_GPU();
  cudaDeviceProp properties{};
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  if (properties.major != 9) {
    GTEST_SKIP() << "the grouped products need compute capability 9.0";
  }
  constexpr int kTokens = 150;
  constexpr int kHidden = 136;
  constexpr int kInner = 200;
  constexpr int kExperts = 5;
  constexpr int kTopK = 3;
  const std::vector<std::int32_t> ids = random_ids(kTokens, kTopK, kExperts);
  const std::vector<std::uint16_t> x = random_bf16(kTokens * kHidden, 1, 1.0);
  const std::vector<std::uint16_t> gate_up = random_bf16(kExperts * 2 * kInner * kHidden, 2, 0.05);
  const std::vector<std::uint16_t> down = random_bf16(kExperts * kHidden * kInner, 3, 0.05);
  const std::vector<float> weights(ids.size(), 0.375F);
  std::vector<std::int64_t> offsets{0};
  std::vector<std::int32_t> row_token;
  std::vector<std::int32_t> pos_of(ids.size(), -1);
  for (int e = 0; e < kExperts; ++e) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == e) {
        pos_of[i] = static_cast<std::int32_t>(row_token.size());
        row_token.push_back(static_cast<std::int32_t>(i) / kTopK);
      }
    }
    offsets.push_back(static_cast<std::int64_t>(row_token.size()));
  }

  OnDevice<std::int32_t> d_ids(ids);
  OnDevice<std::uint16_t> d_x(x);
  OnDevice<std::uint16_t> d_gate_up(gate_up);
  OnDevice<std::uint16_t> d_down(down);
  OnDevice<float> d_weights(weights);
  OnDevice<std::uint16_t> d_y(std::vector<std::uint16_t>(kTokens * kHidden, 0xFFFF));
  const std::size_t bytes =
      cuda::expert_layer_workspace_bytes(kTokens, kTopK, kExperts, kHidden, kInner);
  OnDevice<unsigned char> workspace(std::vector<unsigned char>(bytes, 0xFF));
  cuda::ExpertLayer layer;
  layer.x = {d_x.data(), kTokens, kHidden, kHidden, DType::kBfloat16};
  layer.ids = d_ids.data();
  layer.weights = d_weights.data();
  layer.top_k = kTopK;
  layer.gate_up = {d_gate_up.data(), kExperts, 2 * kInner, kHidden};
  layer.down = {d_down.data(), kExperts, kHidden, kInner};
  layer.y = {d_y.data(), kTokens, kHidden, kHidden, DType::kBfloat16};
  layer.workspace = workspace.data();
  layer.workspace_bytes = bytes;
  cuda::expert_layer(layer, {}, nullptr);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

  std::vector<ConstMatrixView> up_views;
  std::vector<ConstMatrixView> down_views;
  for (int e = 0; e < kExperts; ++e) {
    up_views.emplace_back(gate_up.data() + e * 2 * kInner * kHidden, 2 * kInner, kHidden, kHidden,
                          DType::kBfloat16);
    down_views.emplace_back(down.data() + e * kHidden * kInner, kHidden, kInner, kInner,
                            DType::kBfloat16);
  }
  const auto num_rows = static_cast<std::int64_t>(row_token.size());
  TypedMatrix hidden(num_rows, kInner, DType::kBfloat16);
  TypedMatrix rows(num_rows, kHidden, DType::kBfloat16);
  TypedMatrix y(kTokens, kHidden, DType::kBfloat16);
  const Execution reference{nullptr, Backend::kReference};
  grouped_up({{x.data(), kTokens, kHidden, kHidden, DType::kBfloat16},
              row_token,
              offsets,
              up_views,
              hidden.view()},
             reference);
  grouped_down({hidden.view(), offsets, down_views, rows.view()}, reference);
  std::vector<std::int32_t> sorted = pos_of;
  for (std::size_t i = 0; i < sorted.size(); i += kTopK) {
    std::sort(sorted.begin() + static_cast<std::ptrdiff_t>(i),
              sorted.begin() + static_cast<std::ptrdiff_t>(i + kTopK));
  }
  merge_rows(rows.view(), {sorted, weights, {}}, y.view(), false, reference);
  const std::vector<std::uint16_t> got = d_y.host();
  double error = 0.0;
  double size = 0.0;
  for (int t = 0; t < kTokens; ++t) {
    for (int c = 0; c < kHidden; ++c) {
      const double want = y.at(t, c);
      const double value = from_bfloat16(got[static_cast<std::size_t>(t * kHidden + c)]);
      error += (value - want) * (value - want);
      size += want * want;
    }
  }
  EXPECT_LE(std::sqrt(error), 6e-3 * std::sqrt(size));
}

}  // namespace
}  // namespace coterie::kernels
