// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/weight_gradient.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/backward.hpp"
#include "coterie/run/kernels/checks.hpp"
#include "coterie/run/kernels/row_loops.hpp"

namespace coterie::kernels {
namespace {

constexpr std::int64_t kBiasColumns = 512;  // a thread's share of a bias gradient

template <class View>
View columns_of(View view, std::int64_t first, std::int64_t count) {
  if (view.data != nullptr) {
    view.data = view.template row<char>(0) + first * size_of(view.type);
  }
  view.columns = count;
  return view;
}

/// What the two gradients ask of their arguments.
struct Checks {
  const char* operation;
  std::span<const std::int64_t> offsets;
  bool accumulate;
  bool fp64;

  void rows(const char* argument, const ConstMatrixView& matrix, const char* list,
            std::span<const std::int32_t> row_of) const {
    require_matrix(operation, argument, matrix);
    require_precision(operation, argument, matrix, fp64);
    const std::int64_t num_rows = offsets.empty() ? 0 : offsets.back();
    if (row_of.empty() && num_rows != 0) {
      require_equal(
          operation,
          argument == std::string_view("a") ? "number of rows of a" : "number of rows of b",
          matrix.rows, "the end of expert_offsets", num_rows);
    } else {
      require_equal(operation, list, static_cast<std::int64_t>(row_of.size()),
                    "the end of expert_offsets", num_rows);
      require_rows(operation, list, row_of, matrix.rows);
    }
  }

  void gradients(std::span<const MatrixView> views, std::int64_t rows, std::int64_t columns) const {
    require_equal(operation, "number of gradients", static_cast<std::int64_t>(views.size()),
                  "expert_offsets' number of experts",
                  static_cast<std::int64_t>(offsets.size()) - 1);
    for (std::size_t expert = 0; expert < views.size(); ++expert) {
      if (views[expert].data == nullptr) {
        continue;
      }
      const std::string name = "gradients[" + std::to_string(expert) + "]";
      require_matrix(operation, name.c_str(), views[expert]);
      require_shape(operation, name.c_str(), views[expert], rows, columns);
      require_precision(operation, name.c_str(), views[expert], fp64);
      COTERIE_REQUIRE(!accumulate || views[expert].type != DType::kBfloat16, operation, ": ", name,
                      " is bfloat16; accumulating needs float32 or float64");
    }
  }
};

}  // namespace

void grouped_weight_gradient(const GroupedWeightGradient& task, const Execution& execution) {
  const Backend backend = resolve_backend(execution.backend);
  const Checks checks{"grouped_weight_gradient", task.expert_offsets, task.accumulate,
                      task.a.type == DType::kFloat64};
  require_offsets(checks.operation, "expert_offsets", task.expert_offsets,
                  task.expert_offsets.empty() ? 0 : task.expert_offsets.back());
  checks.rows("a", task.a, "a_rows", task.a_rows);
  checks.rows("b", task.b, "b_rows", task.b_rows);
  checks.gradients(task.gradients, task.a.columns, task.b.columns);
  run_weight_gradient(task, backend, execution.pool());
}

void grouped_bias_gradient(const GroupedBiasGradient& task, const Execution& execution) {
  const Backend backend = resolve_backend(execution.backend);
  const Checks checks{"grouped_bias_gradient", task.expert_offsets, task.accumulate,
                      task.a.type == DType::kFloat64};
  require_offsets(checks.operation, "expert_offsets", task.expert_offsets,
                  task.expert_offsets.empty() ? 0 : task.expert_offsets.back());
  checks.rows("a", task.a, "a_rows", task.a_rows);
  if (task.weights.data != nullptr) {
    require_column(checks.operation, "weights", task.weights, task.expert_offsets.back(),
                   checks.fp64);
  }
  checks.gradients(task.gradients, 1, task.a.columns);
  run_bias_gradient(task, backend, execution.pool());
}

void run_weight_gradient(const GroupedWeightGradient& task, Backend backend, Threads& threads) {
  if (backend == Backend::kReference) {
    grouped_weight_gradient_reference(task, threads);
  } else {
    grouped_weight_gradient_cpu(task, backend, threads);
  }
}

void run_bias_gradient(const GroupedBiasGradient& task, Backend backend, Threads& threads) {
  const auto num_rows = static_cast<std::size_t>(task.expert_offsets.back());
  std::vector<std::int32_t> every_row(task.a_rows.empty() ? num_rows : 0);
  std::iota(every_row.begin(), every_row.end(), 0);
  std::vector<float> weights;
  std::vector<double> fp64_weights;
  if (task.weights.data != nullptr) {
    for (std::size_t r = 0; r < num_rows; ++r) {
      fp64_weights.push_back(load_element(task.weights, static_cast<std::int64_t>(r), 0));
    }
    if (task.a.type != DType::kFloat64) {
      weights.assign(fp64_weights.begin(), fp64_weights.end());
      fp64_weights.clear();
    }
  }
  const MergeList all{task.a_rows.empty() ? every_row : task.a_rows, weights, fp64_weights};
  const auto merge = backend == Backend::kReference ? merge_row_reference : merge_row_cpu;
  const std::int64_t num_blocks = (task.a.columns + kBiasColumns - 1) / kBiasColumns;
  const auto num_experts = static_cast<std::int64_t>(task.gradients.size());
  threads.run(num_experts * num_blocks, [&](std::int64_t part) {
    const auto expert = static_cast<std::size_t>(part / num_blocks);
    const std::int64_t first = part % num_blocks * kBiasColumns;
    const std::int64_t count = std::min(kBiasColumns, task.a.columns - first);
    const MatrixView& to = task.gradients[expert];
    if (to.data != nullptr) {
      merge(columns_of(task.a, first, count),
            all.part(task.expert_offsets[expert], task.expert_offsets[expert + 1]),
            columns_of(to, first, count), 0, task.accumulate);
    }
  });
}

}  // namespace coterie::kernels
