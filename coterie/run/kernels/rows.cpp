// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/rows.hpp"

#include <cstddef>
#include <string>
#include <unordered_set>

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/checks.hpp"
#include "coterie/run/kernels/row_loops.hpp"

namespace coterie::kernels {
namespace {

constexpr std::int64_t kGrainBytes = 1 << 16;  // less than this is not worth waking a thread for

std::int64_t grain_of(const ConstMatrixView& view, std::int64_t rows_per_step = 1) {
  return kGrainBytes / (view.columns * rows_per_step * size_of(view.type) + 1) + 1;
}

[[maybe_unused]] bool all_differ(std::span<const std::int32_t> index) {
  std::unordered_set<std::int32_t> seen;
  for (const std::int32_t row : index) {
    if (row >= 0 && !seen.insert(row).second) {
      return false;
    }
  }
  return true;
}

void require_lists(const RowLists& lists, const ConstMatrixView& from, std::int64_t num_lists) {
  require_rows("merge_rows", "rows", lists.rows, from.rows);
  const auto length = static_cast<std::int64_t>(lists.rows.size());
  if (!lists.weights.empty()) {
    require_equal("merge_rows", "length of weights",
                  static_cast<std::int64_t>(lists.weights.size()), "length of rows", length);
  }
  if (!lists.fp64_weights.empty()) {
    COTERIE_REQUIRE(lists.weights.empty() && from.type == DType::kFloat64,
                    "merge_rows: fp64_weights need float64 rows and no weights; from is ",
                    name_of(from.type));
    require_equal("merge_rows", "length of fp64_weights",
                  static_cast<std::int64_t>(lists.fp64_weights.size()), "length of rows", length);
  }
  if (!lists.offsets.empty()) {
    require_equal("merge_rows", "length of offsets",
                  static_cast<std::int64_t>(lists.offsets.size()), "number of rows of to + 1",
                  num_lists + 1);
    require_offsets("merge_rows", "offsets", lists.offsets, length);
  } else {
    COTERIE_REQUIRE(num_lists == 0 ? length == 0 : length % num_lists == 0,
                    "merge_rows: length of rows is ", length, ", no multiple of the ", num_lists,
                    " rows of to");
  }
}

/// A list of the rows of `matrix`, `num_rows` long; empty: as many rows as that.
void require_list(const char* argument, std::span<const std::int32_t> list,
                  const ConstMatrixView& matrix, std::int64_t num_rows) {
  const std::string what =
      std::string(list.empty() ? "number of rows of " : "length of pairs.") + argument;
  if (!list.empty() || num_rows != 0) {
    require_equal("dot_rows", what.c_str(),
                  list.empty() ? matrix.rows : static_cast<std::int64_t>(list.size()),
                  "number of rows of to", num_rows);
  }
  require_rows("dot_rows", argument, list, matrix.rows);
}

}  // namespace

void gather_rows(const ConstMatrixView& from, std::span<const std::int32_t> index,
                 const MatrixView& to, const Execution& execution) {
  const Backend backend = resolve_backend(execution.backend);
  require_matrix("gather_rows", "from", from);
  require_matrix("gather_rows", "to", to);
  require_equal("gather_rows", "number of columns of to", to.columns, "number of columns of from",
                from.columns);
  require_equal("gather_rows", "number of rows of to", to.rows, "length of index",
                static_cast<std::int64_t>(index.size()));
  require_rows("gather_rows", "index", index, from.rows);
  const auto copy = backend == Backend::kReference ? copy_row_reference : copy_row_cpu;
  execution.pool().run_ranges(to.rows, grain_of(from), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      copy(from, index[static_cast<std::size_t>(i)], to, i);
    }
  });
}

void scatter_rows(const ConstMatrixView& from, std::span<const std::int32_t> index,
                  const MatrixView& to, const Execution& execution) {
  const Backend backend = resolve_backend(execution.backend);
  require_matrix("scatter_rows", "from", from);
  require_matrix("scatter_rows", "to", to);
  require_equal("scatter_rows", "number of columns of to", to.columns, "number of columns of from",
                from.columns);
  require_equal("scatter_rows", "number of rows of from", from.rows, "length of index",
                static_cast<std::int64_t>(index.size()));
  require_rows("scatter_rows", "index", index, to.rows);
  COTERIE_AUDIT(all_differ(index), "scatter_rows: index names a row twice");
  const auto copy = backend == Backend::kReference ? copy_row_reference : copy_row_cpu;
  execution.pool().run_ranges(from.rows, grain_of(from), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      if (index[static_cast<std::size_t>(i)] >= 0) {
        copy(from, i, to, index[static_cast<std::size_t>(i)]);
      }
    }
  });
}

void merge_rows(const ConstMatrixView& from, const RowLists& lists, const MatrixView& to, bool add,
                const Execution& execution) {
  const Backend backend = resolve_backend(execution.backend);
  require_matrix("merge_rows", "from", from);
  require_matrix("merge_rows", "to", to);
  require_equal("merge_rows", "number of columns of to", to.columns, "number of columns of from",
                from.columns);
  require_lists(lists, from, to.rows);
  require_precision("merge_rows", "to", to, from.type == DType::kFloat64);
  COTERIE_REQUIRE(!add || to.type != DType::kBfloat16, "merge_rows: to is ", name_of(to.type),
                  "; adding needs float32 or float64");
  const auto merge = backend == Backend::kReference ? merge_row_reference : merge_row_cpu;
  const auto length = static_cast<std::int64_t>(lists.rows.size());
  const std::int64_t width = to.rows == 0 ? 0 : length / to.rows;
  const MergeList all{lists.rows, lists.weights, lists.fp64_weights};
  execution.pool().run_ranges(
      to.rows, grain_of(from, width + 1), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
          const auto at = static_cast<std::size_t>(t);
          const bool even = lists.offsets.empty();
          const std::int64_t first = even ? t * width : lists.offsets[at];
          const std::int64_t last = even ? (t + 1) * width : lists.offsets[at + 1];
          merge(from, all.part(first, last), to, t, add);
        }
      });
}

void dot_rows(const ConstMatrixView& a, const ConstMatrixView& b, const RowPairs& pairs,
              const MatrixView& to, const Execution& execution) {
  const Backend backend = resolve_backend(execution.backend);
  require_matrix("dot_rows", "a", a);
  require_matrix("dot_rows", "b", b);
  require_equal("dot_rows", "number of columns of b", b.columns, "number of columns of a",
                a.columns);
  require_precision("dot_rows", "b", b, a.type == DType::kFloat64);
  require_column("dot_rows", "to", to, to.rows, a.type == DType::kFloat64);
  require_list("a", pairs.a, a, to.rows);
  require_list("b", pairs.b, b, to.rows);
  const auto dot = backend == Backend::kReference ? dot_row_reference : dot_row_cpu;
  execution.pool().run_ranges(to.rows, grain_of(a, 2), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const auto at = static_cast<std::size_t>(r);
      store_element(
          to, r, 0,
          dot(a, pairs.a.empty() ? r : pairs.a[at], b, pairs.b.empty() ? r : pairs.b[at]));
    }
  });
}

}  // namespace coterie::kernels
