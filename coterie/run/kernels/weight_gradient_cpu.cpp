// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "coterie/run/kernels/backward.hpp"
#include "coterie/run/kernels/outer_columns.hpp"
#include "coterie/run/kernels/product_block.hpp"
#include "coterie/run/kernels/row_loops.hpp"
#include "coterie/run/kernels/scratch.hpp"

namespace coterie::kernels {
namespace {

/// Gradient rows [m, m + num_rows), columns [n, n + count) of one expert.
struct GradientTile {
  std::size_t expert = 0;
  std::int64_t m = 0, num_rows = 0, n = 0, count = 0;
};

/// Both sides' rows of all experts without those that count for nothing.
struct PairedRows {
  std::vector<const void*> a, b;
  std::vector<std::int64_t> offsets = {0};

  explicit PairedRows(const GroupedWeightGradient& task) {
    const std::int64_t num_rows = task.expert_offsets.back();
    const auto all_a = row_pointers(task.a, task.a_rows, num_rows);
    const auto all_b = row_pointers(task.b, task.b_rows, num_rows);
    for (std::size_t expert = 0; expert + 1 < task.expert_offsets.size(); ++expert) {
      const auto end = static_cast<std::size_t>(task.expert_offsets[expert + 1]);
      for (auto r = static_cast<std::size_t>(task.expert_offsets[expert]); r < end; ++r) {
        if (all_a[r] != nullptr && all_b[r] != nullptr) {
          a.push_back(all_a[r]);
          b.push_back(all_b[r]);
        }
      }
      offsets.push_back(static_cast<std::int64_t>(a.size()));
    }
  }
  [[nodiscard]] std::int64_t count(std::size_t expert) const {
    return offsets[expert + 1] - offsets[expert];
  }
};

/// Cuts all gradients into one list of tiles a thread, about equal in work: neighbours, so that a
/// thread's tiles share rows. Any cut gives the same bits.
std::vector<std::vector<GradientTile>> share_tiles(const GroupedWeightGradient& task,
                                                   const PairedRows& rows, int num_threads) {
  const std::int64_t num_m = (task.a.columns + kOuterRows - 1) / kOuterRows;
  const std::int64_t num_units = (task.b.columns + kOuterUnit - 1) / kOuterUnit;
  const auto cost_of = [&](std::size_t expert) -> std::int64_t {
    const bool idle = rows.count(expert) == 0 && task.accumulate;
    return idle || task.gradients[expert].data == nullptr ? 0 : rows.count(expert) + 8;
  };
  std::int64_t total = 0;
  for (std::size_t e = 0; e < task.gradients.size(); ++e) {
    total += cost_of(e) * num_m * num_units;
  }
  std::vector<std::vector<GradientTile>> lists(static_cast<std::size_t>(num_threads));
  std::int64_t before = 0;
  for (std::size_t e = 0; e < task.gradients.size(); ++e) {
    const std::int64_t cost = cost_of(e);
    for (std::int64_t block = 0; cost > 0 && block < num_m; ++block) {
      const std::int64_t m = block * task.a.columns / num_m;
      const std::int64_t num_rows = (block + 1) * task.a.columns / num_m - m;
      for (std::int64_t unit = 0; unit < num_units; ++unit, before += cost) {
        auto& list = lists[static_cast<std::size_t>((before + cost / 2) * num_threads / total)];
        const std::int64_t n = unit * kOuterUnit;
        const std::int64_t end = std::min(n + kOuterUnit, task.b.columns);
        if (list.empty() || list.back().expert != e || list.back().m != m ||
            end - list.back().n > kOuterColumns) {
          list.push_back({e, m, num_rows, n, end - n});
        } else {
          list.back().count = end - list.back().n;
        }
      }
    }
  }
  return lists;
}

/// Computes tiles with one back end's kernel on one thread.
class TileWorker {
 public:
  TileWorker(const GroupedWeightGradient& task, const PairedRows& rows,
             const ProductKernels& kernels)
      : task_(task),
        rows_(rows),
        fp64_(task.a.type == DType::kFloat64),
        run_(fp64_ ? kernels.outer_fp64 : kernels.outer_fp32),
        scratch_(scratch_of_this_thread(kOuterScratchBytes + kOuterSumsBytes)) {}

  void run(const GradientTile& tile) {
    const std::int64_t size = fp64_ ? 8 : 4;
    const MatrixView& to = task_.gradients[tile.expert];
    OuterBlock block;
    block.a.lines = rows_.a.data() + rows_.offsets[tile.expert];
    block.a.offset = tile.m * size_of(task_.a.type);
    block.a.type = task_.a.type;
    block.b.lines = rows_.b.data() + rows_.offsets[tile.expert];
    block.b.offset = tile.n * size_of(task_.b.type);
    block.b.type = task_.b.type;
    block.num_rows = tile.num_rows;
    block.num_columns = tile.count;
    block.depth = rows_.count(tile.expert);
    block.sums = scratch_ + kOuterScratchBytes;
    block.sums_stride = (tile.count + kOuterUnit - 1) / kOuterUnit * kOuterUnit;
    block.start_from_sums = task_.accumulate;
    block.scratch = scratch_;
    char* const sums = scratch_ + kOuterScratchBytes;
    const auto gradient_row = [&](std::int64_t m) {
      return to.row<char>(0) + ((tile.m + m) * to.row_stride + tile.n) * size_of(to.type);
    };
    for (std::int64_t m = 0; task_.accumulate && m < tile.num_rows; ++m) {
      std::copy_n(gradient_row(m), tile.count * size, sums + m * block.sums_stride * size);
    }
    run_(block);
    for (std::int64_t m = 0; m < tile.num_rows; ++m) {
      store_row(sums + m * block.sums_stride * size, tile.count, gradient_row(m), to.type);
    }
  }

 private:
  const GroupedWeightGradient& task_;
  const PairedRows& rows_;
  bool fp64_;
  void (*run_)(const OuterBlock&);
  char* scratch_;
};

}  // namespace

void grouped_weight_gradient_cpu(const GroupedWeightGradient& task, Backend backend,
                                 Threads& threads) {
  const PairedRows rows(task);
  const ProductKernels kernels = kernels_of(backend);
  const auto lists = share_tiles(task, rows, threads.size());
  threads.run(threads.size(), [&](std::int64_t thread) {
    TileWorker worker(task, rows, kernels);
    for (const GradientTile& tile : lists[static_cast<std::size_t>(thread)]) {
      worker.run(tile);
    }
  });
}

}  // namespace coterie::kernels
