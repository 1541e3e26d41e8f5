// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "coterie/run/kernels/column_shares.hpp"
#include "coterie/run/kernels/product.hpp"
#include "coterie/run/kernels/product_block.hpp"
#include "coterie/run/kernels/row_loops.hpp"
#include "coterie/run/kernels/scratch.hpp"

namespace coterie::kernels {
namespace {

ProductBlock block_of(const GroupedProduct& task, const std::vector<const void*>& rows,
                      const ColumnShare& range) {
  const ConstMatrixView& w = task.w[range.expert];
  const std::int64_t first_row = task.offsets[range.expert];
  ProductBlock block;
  block.x_rows = rows.data() + first_row;
  block.num_rows = task.offsets[range.expert + 1] - first_row;
  block.depth = task.x.columns;
  block.x_type = task.x.type;
  block.w_stride = w.row_stride * size_of(w.type);
  block.w = static_cast<const char*>(w.data) + range.begin * block.w_stride;
  block.w_up =
      task.epilogue == Epilogue::kSwiGlu ? block.w + task.y.columns * block.w_stride : nullptr;
  block.w_type = w.type;
  block.num_columns = range.end - range.begin;
  block.y_stride = task.y.row_stride * size_of(task.y.type);
  block.y = static_cast<char*>(task.y.data) + first_row * block.y_stride +
            range.begin * size_of(task.y.type);
  block.y_size = size_of(task.y.type);
  block.y_type = task.y.type;
  block.epilogue = task.epilogue;
  if (!task.bias.empty()) {
    const ConstMatrixView& bias = task.bias[range.expert];
    block.bias_size = size_of(bias.type);
    block.bias_type = bias.type;
    block.bias = static_cast<const char*>(bias.data) + range.begin * block.bias_size;
    block.bias_up = block.bias + task.y.columns * block.bias_size;
  }
  if (task.pre.data != nullptr) {
    block.pre_size = size_of(task.pre.type);
    block.pre_type = task.pre.type;
    block.pre_stride = task.pre.row_stride * block.pre_size;
    block.pre_up = task.y.columns * block.pre_size;
    block.pre = static_cast<char*>(task.pre.data) + first_row * block.pre_stride +
                range.begin * block.pre_size;
  }
  return block;
}

}  // namespace

void grouped_product_cpu(const GroupedProduct& task, Backend backend, Threads& threads) {
  if (task.y.rows == 0 || task.y.columns == 0) {
    return;
  }
  const ProductKernels kernels = kernels_of(backend);
  const std::vector<const void*> rows = row_pointers(task.x, task.row_of, task.y.rows);
  const std::vector<std::vector<ColumnShare>> lists =
      share_columns(task.offsets, task.y.columns, threads.size());
  threads.run(threads.size(), [&](std::int64_t thread) {
    char* const scratch = scratch_of_this_thread(kernels.scratch_bytes(task.x.columns));
    for (const ColumnShare& range : lists[static_cast<std::size_t>(thread)]) {
      ProductBlock block = block_of(task, rows, range);
      block.scratch = scratch;
      kernels.run(block);
    }
  });
}

}  // namespace coterie::kernels
