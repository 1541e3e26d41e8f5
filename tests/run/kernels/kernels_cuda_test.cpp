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
#include "tests/run/kernels/on_device.hpp"
#include "tests/run/kernels/typed_matrix.hpp"

/// The GPU twins against the reference twins. Without a GPU, what they refuse is tested alone.
namespace coterie::kernels {
namespace {

std::string message_of(const std::function<void()>& call, ErrorCode code = ErrorCode::kBadInput) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

/// What a call says when it refuses its arguments.
void expect_refusal(const std::function<void()>& call, const std::string& words,
                    ErrorCode code = ErrorCode::kBadInput) {
  const std::string message = message_of(call, code);
  EXPECT_NE(message.find(words), std::string::npos) << message << "\nlacks: " << words;
}

TEST(KernelsCuda, GateAndReindexRefuse) {
  cuda::TopkGate gate;
  gate.num_experts = 8;
  gate.top_k = 9;
  expect_refusal([&] { cuda::topk_gate(gate, nullptr); }, "top_k is 9, outside [1, 8]");
  gate.top_k = 2;
  gate.num_tokens = 3;
  gate.logits_stride = 7;
  expect_refusal([&] { cuda::topk_gate(gate, nullptr); }, "logits_stride is 7");
  gate.logits_stride = 8;
  expect_refusal([&] { cuda::topk_gate(gate, nullptr); }, "logits is null");
  cuda::Reindex reindex;
  reindex.num_experts = 2000;
  expect_refusal([&] { cuda::build_reindex(reindex, nullptr); }, "num_experts is 2000");
  reindex.num_experts = 8;
  reindex.top_k = 17;
  expect_refusal([&] { cuda::build_reindex(reindex, nullptr); }, "top_k is 17");
  reindex.top_k = 16;
  reindex.num_tokens = std::int64_t{1} << 27;  // 2^31 pairs
  expect_refusal([&] { cuda::build_reindex(reindex, nullptr); }, "num_tokens is 134217728");
  reindex.num_tokens = 1;
  expect_refusal([&] { cuda::build_reindex(reindex, nullptr); }, "expert_offsets is null");
}

TEST(KernelsCuda, RowOperationsRefuse) {
  alignas(16) std::uint16_t some[64] = {};
  const ConstMatrixView eight{some, 1, 8, 8, DType::kBfloat16};
  const ConstMatrixView twelve{some, 1, 12, 16, DType::kBfloat16};
  MatrixView to{some, 1, 8, 8, DType::kBfloat16};
  expect_refusal([&] { cuda::gather_rows({twelve, nullptr, to}, nullptr); }, "12 columns");
  to.columns = 12;
  expect_refusal([&] { cuda::gather_rows({twelve, nullptr, to}, nullptr); }, "24 bytes");
  to.columns = 8;
  expect_refusal([&] { cuda::gather_rows({eight, nullptr, to}, nullptr); }, "index is null");
  const std::vector<ConstMatrixView> mixed{{some, 1, 16, 16, DType::kBfloat16}};
  expect_refusal(
      [&] {
        cuda::gather_rows({eight, nullptr, to, mixed}, nullptr);
      },
      "matrix 1 of from has 16 columns");
  const std::vector<ConstMatrixView> sixteen(16, eight);
  expect_refusal(
      [&] {
        cuda::gather_rows({eight, nullptr, to, sixteen}, nullptr);
      },
      "matrices after from is 16");
  const std::vector<ConstMatrixView> huge(2, {some, INT32_MAX, 8, 8, DType::kBfloat16});
  expect_refusal(
      [&] {
        cuda::gather_rows({eight, nullptr, to, huge}, nullptr);
      },
      "rows of from is 2147483648");
  expect_refusal([&] { cuda::scatter_rows({eight, nullptr, to}, nullptr); }, "index is null");
  to.data = some + 1;
  expect_refusal([&] { cuda::scatter_rows({eight, nullptr, to}, nullptr); }, "multiples of 16");
  to.data = some;
  cuda::MergeRows merge{eight, nullptr, nullptr, 17, to};
  expect_refusal([&] { cuda::merge_rows(merge, nullptr); }, "top_k is 17");
  merge.top_k = 1;
  expect_refusal([&] { cuda::merge_rows(merge, nullptr); }, "pos_of is null");
}

TEST(KernelsCuda, ProductsRefuse) {
  alignas(16) std::uint16_t some[64] = {};
  cuda::GroupedDown down;
  const auto run = [&] { cuda::grouped_down(down, {}, nullptr); };
  expect_refusal(run, "down is null");
  down.down = {some, 1, 8, 8};
  down.down.scale = reinterpret_cast<const float*>(some);
  expect_refusal(run, "fp8", ErrorCode::kUnsupported);
  down.down.scale = nullptr;
  down.down.type = DType::kFloat8E4M3;
  down.down.columns = 16;
  expect_refusal(run, "another type", ErrorCode::kUnsupported);
  down.down = {some, 1, 8, 8};
  down.hidden = {some, 1, 16, 16, DType::kBfloat16};
  expect_refusal(run, "hidden has 16 columns, the weights need 8");
  down.hidden = {some, std::int64_t{1} << 31, 8, 8, DType::kBfloat16};
  expect_refusal(run, "rows of hidden is 2147483648");
  down.hidden = {some, 2, 8, 8, DType::kBfloat16};
  down.rows = {some, 1, 8, 8, DType::kBfloat16};
  expect_refusal(run, "expert_offsets is null");
  const std::int32_t offsets[2] = {0, 2};
  down.expert_offsets = offsets;
  expect_refusal(run, "rows has 1 rows, hidden has 2");
  cuda::GroupedUp up;
  const auto run_up = [&] { cuda::grouped_up(up, {}, nullptr); };
  up.gate_up = {some, 1, 24, 8};
  expect_refusal(run_up, "24 rows, not a multiple of 16");
  up.gate_up.rows = 16;
  up.bias = some;
  expect_refusal(run_up, "swiglu takes no bias");
  up.bias = nullptr;
  up.x = {some, 1, 8, 4, DType::kBfloat16};
  expect_refusal(run_up, "row stride of x is 4");
  up.x = {nullptr, 1, 8, 8, DType::kBfloat16};
  expect_refusal(run_up, "x is null");
  up.x.data = some;
  up.hidden = {some, 1, 8, 8, DType::kFloat32};
  expect_refusal(run_up, "hidden must have the type of the weights");
  up.activation = static_cast<Activation>(77);
  expect_refusal(run_up, "unknown activation 77");
}

TEST(KernelsCuda, LayerRefuses) {
  alignas(16) std::uint16_t some[64] = {};
  cuda::ExpertLayer layer;
  const auto run = [&] { cuda::expert_layer(layer, {}, nullptr); };
  layer.gate_up = {some, 2, 16, 8};
  layer.top_k = 3;
  expect_refusal(run, "top_k is 3, outside [1, 2]");
  layer.top_k = 1;
  layer.down = {some, 3, 8, 8};
  expect_refusal(run, "gate_up has 2 experts, down has 3");
  layer.down = {some, 2, 8, 8};
  layer.x = {some, 1, 8, 8, DType::kBfloat16};
  expect_refusal(run, "x has 1 rows, y has 0");
  layer.y = {some, 1, 8, 8, DType::kBfloat16};
  expect_refusal(run, "workspace is null");
  layer.workspace = some;
  layer.workspace_bytes = 4;
  expect_refusal(run, "workspace has 4 bytes, needs");
}

TEST(KernelsCuda, PathsHaveNames) {
  for (const cuda::Path path :
       {cuda::Path::kAutomatic, cuda::Path::kHopper, cuda::Path::kGeneric}) {
    EXPECT_EQ(cuda::parse_path(cuda::name_of(path), "--kernels"), path);
  }
  expect_refusal([] { cuda::parse_path("fast", "--kernels"); },
                 "--kernels is \"fast\"; expected auto, hopper or generic");
  EXPECT_EQ(cuda::to_string({cuda::Path::kGeneric, "asked for"}), "generic kernels (asked for)");
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
