// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/gate.hpp"

#include <algorithm>
#include <atomic>
#include <limits>

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/checks.hpp"
#include "coterie/run/kernels/gate_rows.hpp"

namespace coterie::kernels {
namespace {

void require_gate(const ConstMatrixView& logits, const GateOptions& options, std::size_t num_ids,
                  std::size_t num_weights) {
  require_matrix("topk_gate", "logits", logits);
  COTERIE_REQUIRE(logits.type == DType::kFloat32, "topk_gate: logits are ", name_of(logits.type),
                  "; expected float32");
  COTERIE_REQUIRE(options.top_k >= 1 && options.top_k <= logits.columns, "topk_gate: top_k is ",
                  options.top_k, ", but there are ", logits.columns, " experts");
  const std::int64_t wanted = logits.rows * options.top_k;
  require_equal("topk_gate", "length of ids", static_cast<std::int64_t>(num_ids), "tokens x top_k",
                wanted);
  require_equal("topk_gate", "length of weights", static_cast<std::int64_t>(num_weights),
                "tokens x top_k", wanted);
}

}  // namespace

std::int64_t topk_gate(const ConstMatrixView& logits, const GateOptions& options,
                       std::span<std::int32_t> ids, std::span<float> weights,
                       const Execution& execution) {
  const Backend backend = resolve_backend(execution.backend);
  require_gate(logits, options, ids.size(), weights.size());
  const auto gate_row = backend == Backend::kReference ? gate_row_reference : gate_row_cpu;
  const auto k = static_cast<std::size_t>(options.top_k);
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> first_bad{kNone};
  execution.pool().run_ranges(logits.rows, 64, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t bad = kNone;
    for (std::int64_t token = begin; token < end; ++token) {
      const std::span row(logits.row<float>(token), static_cast<std::size_t>(logits.columns));
      const std::size_t at = static_cast<std::size_t>(token) * k;
      const std::span token_ids = ids.subspan(at, k);
      const std::span token_weights = weights.subspan(at, k);
      if (!gate_row(row, options.renormalise, token_ids, token_weights)) {
        std::fill(token_ids.begin(), token_ids.end(), -1);
        std::fill(token_weights.begin(), token_weights.end(), 0.0F);
        bad = std::min(bad, token);
      }
    }
    std::int64_t seen = first_bad.load();
    while (bad < seen && !first_bad.compare_exchange_weak(seen, bad)) {
    }
  });
  return first_bad == kNone ? -1 : first_bad.load();
}

}  // namespace coterie::kernels
