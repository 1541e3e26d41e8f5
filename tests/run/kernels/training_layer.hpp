// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "coterie/run/kernels/experts.hpp"
#include "coterie/run/kernels/experts_backward.hpp"
#include "coterie/run/kernels/weight_gradient.hpp"
#include "tests/run/kernels/typed_matrix.hpp"

namespace coterie::kernels {

/// Views of matrices, for the spans of tasks.
inline std::vector<ConstMatrixView> const_views(const std::vector<TypedMatrix>& matrices) {
  std::vector<ConstMatrixView> views;
  for (const TypedMatrix& matrix : matrices) {
    views.push_back(matrix.view());
  }
  return views;
}
inline std::vector<MatrixView> mutable_views(std::vector<TypedMatrix>& matrices) {
  std::vector<MatrixView> views;
  for (TypedMatrix& matrix : matrices) {
    views.push_back(matrix.view());
  }
  return views;
}

/// Sizes and kind of the experts of one layer.
struct LayerKind {
  std::int64_t hidden = 8, inner = 4;
  DType type = DType::kFloat32;
  Activation activation = Activation::kSwiGlu;
  bool with_bias = true;
};

/// What backward makes. Everything is poisoned before.
struct LayerGradients {
  TypedMatrix grad_pre, hidden, grad_weights, grad_x_rows;
  std::vector<TypedMatrix> up, down, up_bias, down_bias;
};

/// One layer's experts, tokens, rows and dL/dy at random, and its forward and backward in all
/// parts.
struct TrainingLayer {
  LayerKind kind;
  std::int64_t num_tokens;
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::int32_t> token_of;  // of each row, -1 now and then
  std::vector<TypedMatrix> up, down, up_bias, down_bias;
  TypedMatrix x, grad_y, weights;

  TrainingLayer(const LayerKind& layer_kind, std::int64_t tokens,
                const std::vector<std::int64_t>& counts, Random& random)
      : kind(layer_kind),
        num_tokens(tokens),
        x(tokens, kind.hidden, kind.type, 3),
        grad_y(tokens, kind.hidden, kind.type, 1),
        weights(0, 1, kind.type) {
    for (const std::int64_t count : counts) {
      offsets.push_back(offsets.back() + count);
      add_expert(random);
    }
    for (std::int64_t r = 0; r < num_rows(); ++r) {
      const bool absent = random.below(11) == 0;
      token_of.push_back(
          absent ? -1
                 : static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(tokens))));
    }
    weights = TypedMatrix(num_rows(), 1, sum_type());
    for (TypedMatrix* matrix : {&x, &grad_y, &weights}) {
      matrix->fill_normal(random);
    }
  }

  [[nodiscard]] std::int64_t num_rows() const { return offsets.back(); }
  [[nodiscard]] std::int64_t pre_columns() const {
    return kind.inner * pre_activations_per_hidden(kind.activation);
  }
  [[nodiscard]] DType sum_type() const {
    return kind.type == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  }

  /// The forward's pre-activations; `hidden` and `rows` where wanted.
  TypedMatrix forward(const Execution& execution, TypedMatrix* hidden_out = nullptr,
                      TypedMatrix* rows_out = nullptr) const {
    TypedMatrix pre(num_rows(), pre_columns(), kind.type, 2);
    TypedMatrix hidden(num_rows(), kind.inner, kind.type, 1);
    TypedMatrix rows(num_rows(), kind.hidden, kind.type, 1);
    for (TypedMatrix* matrix : {&pre, &hidden, &rows}) {
      matrix->poison();
    }
    const auto up_views = const_views(up), down_views = const_views(down);
    const auto up_biases = const_views(up_bias), down_biases = const_views(down_bias);
    grouped_up({x.view(), token_of, offsets, up_views, hidden.view(), kind.activation, up_biases,
                pre.view()},
               execution);
    grouped_down({hidden.view(), offsets, down_views, rows.view(), down_biases}, execution);
    if (hidden_out != nullptr) {
      *hidden_out = hidden;
    }
    if (rows_out != nullptr) {
      *rows_out = rows;
    }
    return pre;
  }

  LayerGradients backward(const TypedMatrix& pre, const Execution& execution) const {
    LayerGradients out{TypedMatrix(num_rows(), pre_columns(), kind.type, 1),
                       TypedMatrix(num_rows(), kind.inner, kind.type, 2),
                       TypedMatrix(num_rows(), 1, sum_type()),
                       TypedMatrix(num_rows(), kind.hidden, kind.type, 1),
                       like(up),
                       like(down),
                       like(up_bias),
                       like(down_bias)};
    for (TypedMatrix* matrix : {&out.grad_pre, &out.hidden, &out.grad_weights, &out.grad_x_rows}) {
      matrix->poison();
    }
    const auto up_views = const_views(up), down_views = const_views(down);
    const auto down_biases = const_views(down_bias);
    GroupedDownBackward task;
    task.grad_rows = grad_y.view();
    task.row_of = token_of;
    task.weights = weights.view();
    task.expert_offsets = offsets;
    task.down = down_views;
    task.bias = down_biases;
    task.pre = pre.view();
    task.activation = kind.activation;
    task.grad_pre = out.grad_pre.view();
    task.hidden = out.hidden.view();
    task.grad_weights = out.grad_weights.view();
    grouped_down_backward(task, execution);
    grouped_up_backward({out.grad_pre.view(), offsets, up_views, out.grad_x_rows.view()},
                        execution);
    const auto up_out = mutable_views(out.up), down_out = mutable_views(out.down);
    grouped_weight_gradient({out.grad_pre.view(), {}, x.view(), token_of, offsets, up_out},
                            execution);
    grouped_weight_gradient({grad_y.view(), token_of, out.hidden.view(), {}, offsets, down_out},
                            execution);
    if (kind.with_bias) {
      const auto up_biases = mutable_views(out.up_bias);
      const auto down_bias_out = mutable_views(out.down_bias);
      grouped_bias_gradient({out.grad_pre.view(), {}, {}, offsets, up_biases}, execution);
      grouped_bias_gradient({grad_y.view(), token_of, weights.view(), offsets, down_bias_out},
                            execution);
    }
    return out;
  }

 private:
  void add_expert(Random& random) {
    const auto spread = [](std::int64_t depth) {
      return 1.0 / std::sqrt(static_cast<double>(depth));
    };
    const auto e = static_cast<std::int64_t>(up.size());
    up.emplace_back(pre_columns(), kind.hidden, kind.type, e % 3);
    up.back().fill_normal(random, spread(kind.hidden));
    down.emplace_back(kind.hidden, kind.inner, kind.type, e % 2);
    down.back().fill_normal(random, spread(kind.inner));
    if (kind.with_bias) {
      up_bias.emplace_back(1, pre_columns(), kind.type);
      up_bias.back().fill_normal(random, 0.5);
      down_bias.emplace_back(1, kind.hidden, kind.type);
      down_bias.back().fill_normal(random, 0.5);
    }
  }

  [[nodiscard]] std::vector<TypedMatrix> like(const std::vector<TypedMatrix>& matrices) const {
    std::vector<TypedMatrix> all;
    for (const TypedMatrix& matrix : matrices) {
      all.emplace_back(matrix.rows(), matrix.columns(), sum_type(), 1);
      all.back().poison();
    }
    return all;
  }
};

}  // namespace coterie::kernels
