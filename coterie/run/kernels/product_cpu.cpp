// SPDX-License-Identifier: Apache-2.0
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/product.hpp"
#include "coterie/run/kernels/product_block.hpp"

namespace coterie::kernels {
namespace {

constexpr std::int64_t kUnit =
    48;  // outputs that a thread takes at least, but for an expert's last

ProductKernels kernels_of(Backend backend) {
  switch (backend) {
#if defined(__x86_64__)
    case Backend::kAvx2: return product_kernels_avx2();
    case Backend::kAvx512: return product_kernels_avx512();
    case Backend::kAvx512Bf16: return product_kernels_avx512_bf16();
#endif
    case Backend::kGeneric: return product_kernels_generic();
    default: break;
  }
  COTERIE_CHECK(false, "back end ", name_of(backend), " has no vector kernels");
}

constexpr std::int64_t kHugePage = std::int64_t{1} << 21;

/// A thread's scratch memory, kept between calls. In one huge page where the system gives one:
/// small pages at random physical addresses compete for the same sets of the second-level cache.
char* scratch_of_this_thread(std::int64_t bytes) {
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<char, Free> memory;
  thread_local std::int64_t size = 0;
  if (bytes > size) {
    memory.reset();
    size = 0;
    const std::int64_t whole = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    memory.reset(
        static_cast<char*>(std::aligned_alloc(kHugePage, static_cast<std::size_t>(whole))));
    if (memory == nullptr) {
      throw std::bad_alloc();
    }
#if defined(__linux__)
    static_cast<void>(madvise(memory.get(), static_cast<std::size_t>(whole), MADV_HUGEPAGE));
#endif
    size = whole;
  }
  return memory.get();
}

/// Outputs [begin, end) of one expert.
struct Range {
  std::size_t expert = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Work of one unit of outputs in arbitrary numbers: few rows cost the reading of the weights.
std::int64_t cost_of(std::int64_t num_rows) {
  return num_rows == 0 ? 0 : std::max<std::int64_t>(num_rows, 6);
}

/// Splits all outputs of all experts into one list of neighbouring ranges a thread, about equal in
/// work. The split depends on the sizes and the number of threads alone.
std::vector<std::vector<Range>> split(const GroupedProduct& task, int num_threads) {
  const std::size_t num_experts = task.w.size();
  const std::int64_t num_units = (task.y.columns + kUnit - 1) / kUnit;
  std::int64_t total = 0;
  for (std::size_t e = 0; e < num_experts; ++e) {
    total += cost_of(task.offsets[e + 1] - task.offsets[e]) * num_units;
  }
  std::vector<std::vector<Range>> lists(static_cast<std::size_t>(num_threads));
  std::int64_t before = 0;
  for (std::size_t e = 0; e < num_experts; ++e) {
    const std::int64_t cost = cost_of(task.offsets[e + 1] - task.offsets[e]);
    for (std::int64_t unit = 0; cost > 0 && unit < num_units; ++unit, before += cost) {
      const std::int64_t thread = (before + cost / 2) * num_threads / total;
      std::vector<Range>& list = lists[static_cast<std::size_t>(thread)];
      const std::int64_t end = std::min((unit + 1) * kUnit, task.y.columns);
      if (list.empty() || list.back().expert != e) {
        list.push_back({e, unit * kUnit, end});
      } else {
        list.back().end = end;
      }
    }
  }
  return lists;
}

/// A pointer for each row of the product: its row of x, or null for zeros.
std::vector<const void*> row_pointers(const GroupedProduct& task) {
  std::vector<const void*> rows(static_cast<std::size_t>(task.y.rows));
  const auto* const base = static_cast<const char*>(task.x.data);
  const std::int64_t stride = task.x.row_stride * size_of(task.x.type);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::int64_t row = task.row_of.empty() ? static_cast<std::int64_t>(r) : task.row_of[r];
    rows[r] = row < 0 ? nullptr : base + row * stride;
  }
  return rows;
}

ProductBlock block_of(const GroupedProduct& task, const std::vector<const void*>& rows,
                      const Range& range) {
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
  block.y_type = task.y.type;
  return block;
}

}  // namespace

void grouped_product_cpu(const GroupedProduct& task, Backend backend, Threads& threads) {
  if (task.y.rows == 0 || task.y.columns == 0) {
    return;
  }
  const ProductKernels kernels = kernels_of(backend);
  const std::vector<const void*> rows = row_pointers(task);
  const std::vector<std::vector<Range>> lists = split(task, threads.size());
  threads.run(threads.size(), [&](std::int64_t thread) {
    char* const scratch = scratch_of_this_thread(kernels.scratch_bytes(task.x.columns));
    for (const Range& range : lists[static_cast<std::size_t>(thread)]) {
      ProductBlock block = block_of(task, rows, range);
      block.scratch = scratch;
      kernels.run(block);
    }
  });
}

}  // namespace coterie::kernels
