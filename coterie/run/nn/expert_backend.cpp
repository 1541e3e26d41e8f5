// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/nn/expert_backend.hpp"

#include <ATen/ATen.h>

#include "coterie/base/error.hpp"
#include "coterie/run/nn/grouped_mm.hpp"
#include "coterie/run/nn/moe_layer.hpp"

namespace coterie::nn {
namespace {

/// The picks of experts that are held, sorted by place, within a place by token.
struct SortedPicks {
  at::Tensor token;    ///< [R] int64
  at::Tensor weight;   ///< [R]
  at::Tensor place;    ///< [R] int64, ascending
  at::Tensor offsets;  ///< [n] int32: one past the last row of each place
};

SortedPicks sort_picks(const ExpertsImpl& experts, const at::Tensor& ids,
                       const at::Tensor& weights) {
  const auto held = std::ssize(experts.expert_ids());
  const at::Tensor known = at::tensor(experts.expert_ids(), at::kInt).to(ids.device());
  const at::Tensor is_place = ids.reshape({-1, 1}).to(at::kInt).eq(known);  // [T k, n]
  const auto found = at::where(is_place.t());  // place ascending, then pick ascending
  SortedPicks picks;
  picks.place = found[0];
  picks.token = found[1].div(ids.size(1), "floor");
  picks.weight = weights.reshape(-1).index_select(0, found[1]);
  picks.offsets = is_place.sum(0).cumsum(0).to(at::kInt).reshape({held});
  return picks;
}

at::Tensor activate(ExpertKind kind, const at::Tensor& pre) {
  if (kind == ExpertKind::kSwiGlu) {
    const auto halves = pre.chunk(2, 1);
    return at::silu(halves[0]) * halves[1];
  }
  return at::gelu(pre, kind == ExpertKind::kGeluTanh ? "tanh" : "none");
}

at::Tensor with_bias(const at::Tensor& sums, const at::Tensor& bias, const at::Tensor& place) {
  return bias.defined() ? sums + bias.index_select(0, place) : sums;
}

at::Tensor by_grouped_mm(ExpertsImpl& experts, const at::Tensor& rows, const at::Tensor& ids,
                         const at::Tensor& weights) {
  const SortedPicks picks = sort_picks(experts, ids, weights);
  const at::Tensor x = rows.index_select(0, picks.token);
  const at::Tensor pre =
      with_bias(grouped_mm(x, experts.up, picks.offsets), experts.up_bias, picks.place);
  const at::Tensor outputs =
      with_bias(grouped_mm(activate(experts.kind(), pre).contiguous(), experts.down, picks.offsets),
                experts.down_bias, picks.place);
  const at::Tensor terms = outputs.to(weights.scalar_type()) * picks.weight.unsqueeze(1);
  return at::zeros({rows.size(0), rows.size(1)}, weights.options())
      .index_add(0, picks.token, terms)
      .to(rows.scalar_type());
}

}  // namespace

const char* name_of(ExpertBackend backend) noexcept {
  return backend == ExpertBackend::kLoop ? "loop" : "grouped_mm";
}

ExpertBackend parse_expert_backend(std::string_view name, const std::string& source) {
  for (const ExpertBackend backend : {ExpertBackend::kLoop, ExpertBackend::kGroupedMm}) {
    if (name == name_of(backend)) {
      return backend;
    }
  }
  fail(ErrorCode::kBadInput, source, " is \"", name, "\"; expected loop or grouped_mm");
}

at::Tensor compute_experts(ExpertBackend backend, ExpertsImpl& experts, const at::Tensor& rows,
                           const at::Tensor& ids, const at::Tensor& weights) {
  COTERIE_REQUIRE(rows.dim() == 2 && ids.dim() == 2 && ids.sizes() == weights.sizes() &&
                      ids.size(0) == rows.size(0),
                  "compute_experts: rows has ", rows.size(0), " rows, ids ", ids.size(0),
                  ", weights ", weights.size(0));
  if (backend == ExpertBackend::kLoop) {
    return reference_experts(experts, rows, ids, weights);
  }
  if (!experts.up.defined()) {
    fail(ErrorCode::kUnsupported, "compute_experts: custom experts have no grouped_mm");
  }
  return by_grouped_mm(experts, rows, ids, weights);
}

}  // namespace coterie::nn
