// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/training_sums.hpp"

#include <algorithm>
#include <vector>

#include "coterie/base/error.hpp"

namespace coterie::exchange {
namespace {

using kernels::ConstMatrixView;
using kernels::DType;
using kernels::MatrixView;

constexpr std::int64_t kGrainBytes = 1 << 16;  // less than this is not worth waking a thread for

std::int64_t grain_of(std::int64_t columns) {
  return kGrainBytes / (columns * 4 + 1) + 1;
}

/// A bf16 in memory.
struct Bfloat16 {
  std::uint16_t bits;
};

inline double value_of(double value) {
  return value;
}
inline float value_of(float value) {
  return value;
}
inline float value_of(Bfloat16 value) {
  return kernels::from_bfloat16(value.bits);
}
inline void store(double value, double& to) {
  to = value;
}
inline void store(float value, float& to) {
  to = value;
}
inline void store(float value, Bfloat16& to) {
  to.bits = kernels::to_bfloat16(value);
}

/// sums += weight * row; the product is rounded before it is added.
template <typename Sum, typename Row>
void add_weighted(Sum weight, const Row* row, std::span<Sum> sums) {
  for (std::size_t c = 0; c < sums.size(); ++c) {
    const Sum term = weight * value_of(row[c]);
    sums[c] = sums[c] + term;
  }
}

template <typename Sum, typename Row>
void add(const Row* row, std::span<Sum> sums) {
  for (std::size_t c = 0; c < sums.size(); ++c) {
    sums[c] = sums[c] + value_of(row[c]);
  }
}

template <typename Sum, typename Out>
void store_row(std::span<const Sum> sums, Out* to) {
  for (std::size_t c = 0; c < sums.size(); ++c) {
    store(sums[c], to[c]);
  }
}

template <typename Sum, typename Out>
void sum_entries_as(const DeviceSum& task, const kernels::Execution& execution) {
  const auto& lists = task.lists;
  const std::int64_t first_entry = task.entry_offsets[static_cast<std::size_t>(lists.first_row)];
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    std::vector<Sum> sums(static_cast<std::size_t>(task.sums.columns));
    for (std::int64_t i = begin; i < end; ++i) {
      const auto row = static_cast<std::size_t>(i);
      std::fill(sums.begin(), sums.end(), Sum{0});
      for (std::int64_t j = lists.entry_offsets[row]; j < lists.entry_offsets[row + 1]; ++j) {
        const Sum* expanded =
            task.expanded.row<Sum>(lists.expanded_of_entry[static_cast<std::size_t>(j)]);
        if (task.weights == nullptr) {
          add<Sum>(expanded, sums);
        } else {
          add_weighted<Sum>(task.weights->data<Sum>()[first_entry + j], expanded, sums);
        }
      }
      store_row<Sum>(sums, task.sums.row<Out>(task.sum_at[row]));
    }
  };
  execution.pool().run_ranges(lists.num_rows, grain_of(task.sums.columns), body);
}

/// The tokens of one thread: memory for the sums.
template <typename Sum, typename Row, typename Out>
class HomeSummer {
 public:
  explicit HomeSummer(const HomeSum& task)
      : task_(task),
        device_(static_cast<std::size_t>(task.y.columns)),
        total_(static_cast<std::size_t>(task.y.columns)) {}

  void sum_token(std::int64_t token) {
    const auto t = static_cast<std::size_t>(token);
    const auto& sent = task_.sent;
    std::fill(total_.begin(), total_.end(), Sum{0});
    std::int64_t i = sent.token_offsets[t];
    while (i < sent.token_offsets[t + 1]) {
      const std::int32_t row = sent.rows_of_token[static_cast<std::size_t>(i)];
      const std::int64_t device_end =
          *std::upper_bound(sent.row_offsets.begin(), sent.row_offsets.end(), std::int64_t{row});
      const std::int64_t first = i;
      while (i < sent.token_offsets[t + 1] &&
             sent.rows_of_token[static_cast<std::size_t>(i)] < device_end) {
        ++i;
      }
      add_device(first, i);
    }
    store_row<Sum>(total_, task_.y.row<Out>(token));
  }

 private:
  /// The rows that one device returned: one, or in the classical form one an expert.
  void add_device(std::int64_t first, std::int64_t end) {
    if (end - first == 1 && task_.weights == nullptr) {
      add<Sum>(returned(first), std::span(total_));
      return;
    }
    std::fill(device_.begin(), device_.end(), Sum{0});
    for (std::int64_t i = first; i < end; ++i) {
      if (task_.weights == nullptr) {
        add<Sum>(returned(i), std::span(device_));
      } else {
        const std::int32_t row = task_.sent.rows_of_token[static_cast<std::size_t>(i)];
        add_weighted<Sum>(task_.weights->data<Sum>()[row], returned(i), std::span(device_));
      }
    }
    add<Sum>(device_.data(), std::span(total_));
  }

  [[nodiscard]] const Row* returned(std::int64_t i) const {
    const auto row =
        static_cast<std::size_t>(task_.sent.rows_of_token[static_cast<std::size_t>(i)]);
    return task_.returned.row<Row>(task_.returned_at[row]);
  }

  const HomeSum& task_;
  std::vector<Sum> device_;
  std::vector<Sum> total_;
};

template <typename Sum, typename Row, typename Out>
void sum_at_home_as(const HomeSum& task, std::int64_t first, std::int64_t end,
                    const kernels::Execution& execution) {
  execution.pool().run_ranges(
      end - first, grain_of(task.y.columns), [&](std::int64_t from, std::int64_t to) {
        HomeSummer<Sum, Row, Out> summer(task);
        for (std::int64_t token = first + from; token < first + to; ++token) {
          summer.sum_token(token);
        }
      });
}

template <typename Row>
void sum_at_home_from(const HomeSum& task, std::int64_t first, std::int64_t end,
                      const kernels::Execution& execution) {
  if (task.y.type == DType::kBfloat16) {
    sum_at_home_as<float, Row, Bfloat16>(task, first, end, execution);
  } else {
    sum_at_home_as<float, Row, float>(task, first, end, execution);
  }
}

[[noreturn]] void refuse_types() {
  fail(ErrorCode::kInternal, "sums of rows of unlike types");
}

}  // namespace

void sum_entries(const DeviceSum& task, const kernels::Execution& execution) {
  COTERIE_CHECK(task.expanded.columns == task.sums.columns &&
                    std::ssize(task.sum_at) == task.lists.num_rows &&
                    task.expanded.rows == std::ssize(task.lists.row_of_expanded) &&
                    (task.weights == nullptr || task.weights->type() == task.expanded.type),
                task.expanded.rows, " x ", task.expanded.columns, " outputs for ",
                task.lists.row_of_expanded.size(), " rows");
  const bool is_fp64 = task.expanded.type == DType::kFloat64;
  if (is_fp64 != (task.sums.type == DType::kFloat64)) {
    refuse_types();
  }
  if (is_fp64) {
    sum_entries_as<double, double>(task, execution);
  } else if (task.sums.type == DType::kBfloat16) {
    sum_entries_as<float, Bfloat16>(task, execution);
  } else {
    sum_entries_as<float, float>(task, execution);
  }
}

void sum_at_home(const HomeSum& task, std::int64_t first, std::int64_t end,
                 const kernels::Execution& execution) {
  const bool is_fp64 = task.returned.type == DType::kFloat64;
  if (is_fp64 != (task.y.type == DType::kFloat64)) {
    refuse_types();
  }
  if (is_fp64) {
    sum_at_home_as<double, double, double>(task, first, end, execution);
  } else if (task.returned.type == DType::kBfloat16) {
    sum_at_home_from<Bfloat16>(task, first, end, execution);
  } else {
    sum_at_home_from<float>(task, first, end, execution);
  }
}

}  // namespace coterie::exchange
