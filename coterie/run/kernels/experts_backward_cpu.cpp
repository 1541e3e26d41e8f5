// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "coterie/run/kernels/activation_math.hpp"
#include "coterie/run/kernels/backward.hpp"
#include "coterie/run/kernels/checks.hpp"
#include "coterie/run/kernels/column_shares.hpp"
#include "coterie/run/kernels/outer_columns.hpp"
#include "coterie/run/kernels/product_block.hpp"
#include "coterie/run/kernels/row_loops.hpp"

namespace coterie::kernels {
namespace {

Epilogue epilogue_of(Activation activation) {
  switch (activation) {
    case Activation::kSwiGlu: return Epilogue::kSwiGlu;
    case Activation::kGelu: return Epilogue::kGelu;
    case Activation::kGeluTanh: return Epilogue::kGeluTanh;
  }
  return Epilogue::kNone;
}

char* element(const MatrixView& view, std::int64_t row, std::int64_t column) {
  return view.data == nullptr
             ? nullptr
             : view.row<char>(0) + (row * view.row_stride + column) * size_of(view.type);
}
const char* element(const ConstMatrixView& view, std::int64_t row, std::int64_t column) {
  return view.row<char>(0) + (row * view.row_stride + column) * size_of(view.type);
}

/// The end of grouped_down_backward for rows whose d = down^T g is known.
class DownBackward {
 public:
  DownBackward(const GroupedDownBackward& task, void (*row)(const DownBackwardRow&))
      : task_(task),
        run_row_(row),
        width_(task.pre.columns / pre_activations_per_hidden(task.activation)),
        parts_per_row_((width_ + kPartColumns - 1) / kPartColumns),
        parts_(task.grad_weights.data == nullptr
                   ? 0
                   : static_cast<std::size_t>(task.pre.rows * parts_per_row_)) {}

  [[nodiscard]] std::int64_t width() const { return width_; }

  /// Columns [begin, begin + count) of row r, which is absent (all zeros) or not.
  void finish(std::int64_t r, bool absent, std::int64_t begin, std::int64_t count, const void* d) {
    if (absent) {
      clear(task_.hidden, r, begin, count);
      clear(task_.grad_pre, r, begin, count);
      if (task_.activation == Activation::kSwiGlu) {
        clear(task_.grad_pre, r, width_ + begin, count);
      }
    } else if (task_.pre.type == DType::kFloat64) {
      finish_fp64(r, begin, count, static_cast<const double*>(d));
    } else {
      finish_fp32(r, begin, count, static_cast<const float*>(d));
    }
  }

  /// Adds up the parts of row r; `g` is its row of grad_rows or -1.
  void finish_weight(std::int64_t r, std::int64_t g, std::size_t expert) const {
    double sum = 0.0;
    if (g >= 0) {
      const double* const parts = parts_.data() + r * parts_per_row_;
      for (std::int64_t part = 0; part < parts_per_row_; ++part) {
        sum += parts[part];
      }
      if (!task_.bias.empty()) {
        sum += dot_row_cpu(task_.grad_rows, g, task_.bias[expert], 0);
      }
    }
    store_element(task_.grad_weights, r, 0, sum);
  }

 private:
  static void clear(const MatrixView& view, std::int64_t row, std::int64_t column,
                    std::int64_t count) {
    if (view.data != nullptr) {
      std::fill_n(element(view, row, column), count * size_of(view.type), 0);
    }
  }
  [[nodiscard]] double* parts_of(std::int64_t r, std::int64_t begin) {
    return parts_.empty() ? nullptr : parts_.data() + r * parts_per_row_ + begin / kPartColumns;
  }

  void finish_fp32(std::int64_t r, std::int64_t begin, std::int64_t count, const float* d) {
    DownBackwardRow row;
    row.d = d;
    row.count = count;
    row.weight = task_.weights.data == nullptr ? 1.0F : *task_.weights.row<float>(r);
    row.activation = epilogue_of(task_.activation);
    row.pre = element(task_.pre, r, begin);
    if (task_.activation == Activation::kSwiGlu) {
      row.pre_second = element(task_.pre, r, width_ + begin);
      row.grad_second = element(task_.grad_pre, r, width_ + begin);
    }
    row.pre_size = size_of(task_.pre.type);
    row.pre_type = task_.pre.type;
    row.grad = element(task_.grad_pre, r, begin);
    row.grad_size = size_of(task_.grad_pre.type);
    row.grad_type = task_.grad_pre.type;
    row.hidden = element(task_.hidden, r, begin);
    row.hidden_size = size_of(task_.hidden.type);
    row.hidden_type = task_.hidden.type;
    row.parts = parts_of(r, begin);
    run_row_(row);
  }

  void finish_fp64(std::int64_t r, std::int64_t begin, std::int64_t count, const double* d) {
    const bool gated = task_.activation == Activation::kSwiGlu;
    const double weight = task_.weights.data == nullptr ? 1.0 : *task_.weights.row<double>(r);
    for (std::int64_t i = 0; i < count; ++i) {
      const ActivationPoint at =
          activation_at(task_.activation, task_.pre.row<double>(r)[begin + i],
                        gated ? task_.pre.row<double>(r)[width_ + begin + i] : 0.0);
      if (double* const parts = parts_of(r, begin)) {
        double& part = parts[i / kPartColumns];
        part = (i % kPartColumns == 0 ? 0.0 : part) + d[i] * at.hidden;
      }
      if (task_.hidden.data != nullptr) {
        task_.hidden.row<double>(r)[begin + i] = weight * at.hidden;
      }
      if (task_.grad_pre.data != nullptr) {
        double* const grad = task_.grad_pre.row<double>(r) + begin + i;
        grad[0] = weight * d[i] * at.by_first;
        if (gated) {
          grad[width_] = weight * d[i] * at.by_second;
        }
      }
    }
  }

  const GroupedDownBackward& task_;
  void (*run_row_)(const DownBackwardRow&);
  std::int64_t width_;
  std::int64_t parts_per_row_;
  std::vector<double> parts_;  // [R, parts of a row]
};

}  // namespace

double part_sum(const float* products, std::int64_t count) {
  double sums[8] = {};
  for (std::int64_t i = 0; i < count; ++i) {
    sums[i % 8] += static_cast<double>(products[i]);
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

void grouped_down_backward_cpu(const GroupedDownBackward& task, Backend backend, Threads& threads) {
  DownBackward backward(task, kernels_of(backend).down_backward_row);
  const std::vector<const void*> rows = row_pointers(task.grad_rows, task.row_of, task.pre.rows);
  const OuterColumns columns{rows, task.grad_rows.type, task.expert_offsets, task.down,
                             backward.width()};
  columns.run(backend, threads, [&](const OuterResult& result) {
    for (std::int64_t m = 0; m < result.num_rows; ++m) {
      const std::int64_t r = result.first_row + m;
      backward.finish(r, rows[static_cast<std::size_t>(r)] == nullptr, result.begin, result.count,
                      result.row(m));
    }
  });
  if (task.grad_weights.data == nullptr) {
    return;
  }
  for (std::size_t expert = 0; expert + 1 < task.expert_offsets.size(); ++expert) {
    const std::int64_t first = task.expert_offsets[expert];
    threads.run_ranges(
        task.expert_offsets[expert + 1] - first, 256, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t r = first + begin; r < first + end; ++r) {
            backward.finish_weight(
                r, task.row_of.empty() ? r : task.row_of[static_cast<std::size_t>(r)], expert);
          }
        });
  }
}

void grouped_up_backward_cpu(const GroupedUpBackward& task, Backend backend, Threads& threads) {
  const std::vector<const void*> rows = row_pointers(task.grad_pre, {}, task.grad_pre.rows);
  const OuterColumns columns{rows, task.grad_pre.type, task.expert_offsets, task.gate_up,
                             task.grad_x_rows.columns};
  columns.run(backend, threads, [&](const OuterResult& result) {
    for (std::int64_t m = 0; m < result.num_rows; ++m) {
      store_row(result.row(m), result.count,
                element(task.grad_x_rows, result.first_row + m, result.begin),
                task.grad_x_rows.type);
    }
  });
}

}  // namespace coterie::kernels
