// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/outer_columns.hpp"

#include <algorithm>
#include <cstring>

#include "coterie/run/kernels/bfloat16.hpp"
#include "coterie/run/kernels/column_shares.hpp"
#include "coterie/run/kernels/product_block.hpp"
#include "coterie/run/kernels/scratch.hpp"

namespace coterie::kernels {
namespace {

/// One thread's share of one expert, block after block.
class Share {
 public:
  Share(const OuterColumns& task, const ProductKernels& kernels,
        const std::function<void(const OuterResult&)>& finish)
      : task_(task),
        finish_(finish),
        fp64_(task.row_type == DType::kFloat64),
        run_(fp64_ ? kernels.outer_fp64 : kernels.outer_fp32),
        scratch_(scratch_of_this_thread(kOuterScratchBytes + kOuterSumsBytes)) {}

  void run(const ColumnShare& share) {
    const std::int64_t first = task_.offsets[share.expert];
    const std::int64_t num_rows = task_.offsets[share.expert + 1] - first;
    const bool few = num_rows <= kOuterFewRows;
    const std::int64_t num_chunks = (num_rows + kOuterRows - 1) / kOuterRows;
    const std::int64_t width = few ? kOuterFewColumns : kOuterColumns;
    for (std::int64_t begin = share.begin; begin < share.end; begin += width) {
      const std::int64_t count = std::min(width, share.end - begin);
      for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk) {
        const std::int64_t row = first + chunk * num_rows / num_chunks;
        const std::int64_t end = first + (chunk + 1) * num_rows / num_chunks;
        run_block(share.expert, {row, end - row, begin, count, nullptr, 0}, few);
      }
    }
  }

 private:
  void run_block(std::size_t expert, OuterResult result, bool few) {
    const ConstMatrixView& w = task_.w[expert];
    const std::int64_t size = size_of(w.type);
    OuterBlock block;
    block.a.lines = task_.rows.data() + result.first_row;
    block.a.type = task_.row_type;
    block.a.by_depth = false;
    block.b.base = static_cast<const char*>(w.data);
    block.b.stride = w.row_stride * size;
    block.b.offset = result.begin * size;
    block.b.type = w.type;
    block.num_rows = result.num_rows;
    block.num_columns = result.count;
    block.depth = w.rows;
    block.sums = scratch_ + kOuterScratchBytes;
    block.sums_stride = (result.count + kOuterUnit - 1) / kOuterUnit * kOuterUnit;
    block.few_rows = few;
    block.scratch = scratch_;
    run_(block);
    result.sums = static_cast<const char*>(block.sums);
    result.stride = block.sums_stride * (fp64_ ? 8 : 4);
    finish_(result);
  }

  const OuterColumns& task_;
  const std::function<void(const OuterResult&)>& finish_;
  bool fp64_;
  void (*run_)(const OuterBlock&);
  char* scratch_;
};

}  // namespace

void OuterColumns::run(Backend backend, Threads& threads,
                       const std::function<void(const OuterResult&)>& finish) const {
  const ProductKernels kernels = kernels_of(backend);
  const auto lists = share_columns(offsets, num_columns, threads.size());
  threads.run(threads.size(), [&](std::int64_t thread) {
    Share worker(*this, kernels, finish);
    for (const ColumnShare& share : lists[static_cast<std::size_t>(thread)]) {
      worker.run(share);
    }
  });
}

void store_row(const void* sums, std::int64_t count, char* to, DType type) {
  if (type == DType::kBfloat16) {
    const auto* const values = static_cast<const float*>(sums);
    std::transform(values, values + count, reinterpret_cast<std::uint16_t*>(to), to_bfloat16);
  } else {
    std::memcpy(to, sums, static_cast<std::size_t>(count * size_of(type)));
  }
}

}  // namespace coterie::kernels
