// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "coterie/run/kernels/activation_math.hpp"
#include "coterie/run/kernels/column_shares.hpp"
#include "coterie/run/kernels/product.hpp"
#include "coterie/run/kernels/product_block.hpp"
#include "coterie/run/kernels/row_loops.hpp"
#include "coterie/run/kernels/scratch.hpp"

namespace coterie::kernels {
namespace {

double finished(Epilogue epilogue, double first, double second) {
  switch (epilogue) {
    case Epilogue::kSwiGlu: return activation_at(Activation::kSwiGlu, first, second).hidden;
    case Epilogue::kGelu: return activation_at(Activation::kGelu, first, second).hidden;
    case Epilogue::kGeluTanh: return activation_at(Activation::kGeluTanh, first, second).hidden;
    case Epilogue::kNone: break;
  }
  return first;
}

/// One block of outputs: rows [row, row + num_rows), columns [begin, begin + count) of an expert.
struct Fp64Block {
  std::size_t expert = 0;
  std::int64_t row = 0, num_rows = 0, begin = 0, count = 0;
};

/// The work of one thread.
class Fp64Product {
 public:
  Fp64Product(const GroupedProduct& task, const std::vector<const void*>& rows,
              void (*outer)(const OuterBlock&))
      : task_(task),
        rows_(rows),
        run_(outer),
        gated_(task.epilogue == Epilogue::kSwiGlu),
        scratch_(scratch_of_this_thread(kOuterScratchBytes + 2 * kOuterSumsBytes)) {}

  void run(const ColumnShare& share) {
    const std::int64_t end = task_.offsets[share.expert + 1];
    for (std::int64_t begin = share.begin; begin < share.end; begin += kOuterColumns) {
      const std::int64_t count = std::min(kOuterColumns, share.end - begin);
      for (std::int64_t row = task_.offsets[share.expert]; row < end; row += kOuterRows) {
        const Fp64Block block{share.expert, row, std::min(kOuterRows, end - row), begin, count};
        multiply(block, 0);
        if (gated_) {
          multiply(block, 1);
        }
        finish(block);
      }
    }
  }

 private:
  double* sums(int half) const {
    return reinterpret_cast<double*>(scratch_ + kOuterScratchBytes + half * kOuterSumsBytes);
  }

  void multiply(const Fp64Block& at, int half) {
    const ConstMatrixView& w = task_.w[at.expert];
    OuterBlock block;
    block.a.lines = rows_.data() + at.row;
    block.a.type = DType::kFloat64;
    block.a.by_depth = false;
    block.b.stride = w.row_stride * 8;
    block.b.base =
        static_cast<const char*>(w.data) + (at.begin + half * task_.y.columns) * block.b.stride;
    block.b.type = DType::kFloat64;
    block.b.by_depth = false;
    block.num_rows = at.num_rows;
    block.num_columns = at.count;
    block.depth = task_.x.columns;
    block.sums = sums(half);
    block.sums_stride = kOuterColumns;
    block.scratch = scratch_;
    run_(block);
  }

  void finish(const Fp64Block& at) const {
    const std::int64_t width = task_.y.columns;
    for (std::int64_t m = 0; m < at.num_rows; ++m) {
      const std::int64_t r = at.row + m;
      const bool absent = rows_[static_cast<std::size_t>(r)] == nullptr;
      const double* const bias =
          task_.bias.empty() ? nullptr : task_.bias[at.expert].row<double>(0);
      for (std::int64_t i = 0; i < at.count; ++i) {
        const std::int64_t n = at.begin + i;
        double value[2] = {};
        for (int half = 0; half < 1 + gated_ && !absent; ++half) {
          value[half] =
              sums(half)[m * kOuterColumns + i] + (bias == nullptr ? 0.0 : bias[n + half * width]);
        }
        task_.y.row<double>(r)[n] = absent ? 0.0 : finished(task_.epilogue, value[0], value[1]);
        for (int half = 0; half < 1 + gated_ && task_.pre.data != nullptr; ++half) {
          task_.pre.row<double>(r)[n + half * width] = value[half];
        }
      }
    }
  }

  const GroupedProduct& task_;
  const std::vector<const void*>& rows_;
  void (*run_)(const OuterBlock&);
  bool gated_;
  char* scratch_;
};

}  // namespace

void grouped_product_fp64(const GroupedProduct& task, Backend backend, Threads& threads) {
  const std::vector<const void*> rows = row_pointers(task.x, task.row_of, task.y.rows);
  const auto lists = share_columns(task.offsets, task.y.columns, threads.size());
  const auto run = kernels_of(backend).outer_fp64;
  threads.run(threads.size(), [&](std::int64_t thread) {
    Fp64Product product(task, rows, run);
    for (const ColumnShare& share : lists[static_cast<std::size_t>(thread)]) {
      product.run(share);
    }
  });
}

}  // namespace coterie::kernels
