// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/row_collectives.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

#include "coterie/base/error.hpp"

namespace coterie::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

parallel::SumType sum_type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return parallel::SumType::kFloat32;
    case at::kDouble: return parallel::SumType::kFloat64;
    case at::kBFloat16: return parallel::SumType::kBfloat16;
    case at::kLong: return parallel::SumType::kInt64;
    default: fail(ErrorCode::kUnsupported, "sums over ranks of ", tensor.toString());
  }
}

at::Tensor on_host(const at::Tensor& x) {
  return x.detach().to(at::kCPU).contiguous();
}

/// Numbers of each block, for rows of `x`.
std::vector<std::int64_t> counts_of(const at::Tensor& x, const RowBlocks& blocks) {
  std::vector<std::int64_t> counts = blocks.num_rows;
  for (std::int64_t& count : counts) {
    for (std::int64_t d = 1; d < x.dim(); ++d) {
      count *= x.size(d);
    }
  }
  return counts;
}

std::vector<std::int64_t> shape_with_rows(const at::Tensor& x, std::int64_t num_rows) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape[0] = num_rows;
  return shape;
}

at::Tensor gather(const at::Tensor& x, const RowBlocks& blocks, comm::Communicator& group) {
  const at::Tensor mine = on_host(x);
  const at::Tensor all = at::empty(shape_with_rows(x, blocks.total()), mine.options());
  all_gather_blocks(group, numbers_of(mine), counts_of(x, blocks), numbers_of(all),
                    comm::Purpose::kDispatch);
  return all.to(x.device());
}

at::Tensor sum_scatter(const at::Tensor& x, const RowBlocks& blocks, comm::Communicator& group) {
  const at::Tensor partial = on_host(x);
  const at::Tensor sum =
      at::empty(shape_with_rows(x, blocks.num_rows[static_cast<std::size_t>(group.rank())]),
                partial.options());
  reduce_scatter_blocks(group, numbers_of(partial), counts_of(x, blocks), numbers_of(sum),
                        comm::Purpose::kCombine);
  return sum.to(x.device());
}

comm::Communicator& group_of(AutogradContext* context) {
  return *reinterpret_cast<comm::Communicator*>(context->saved_data["group"].toInt());
}

void keep(AutogradContext* context, const RowBlocks& blocks, comm::Communicator& group) {
  context->saved_data["group"] = reinterpret_cast<std::int64_t>(&group);
  context->saved_data["rows"] = blocks.num_rows;
}

RowBlocks blocks_of(AutogradContext* context) {
  return {context->saved_data["rows"].toIntVector()};
}

struct GatherRows : Function<GatherRows> {
  static Variable forward(AutogradContext* context, const Variable& x, const RowBlocks& blocks,
                          comm::Communicator* group) {
    keep(context, blocks, *group);
    return gather(x, blocks, *group);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {sum_scatter(gradients[0], blocks_of(context), group_of(context)), {}, {}};
  }
};

struct SumScatterRows : Function<SumScatterRows> {
  static Variable forward(AutogradContext* context, const Variable& x, const RowBlocks& blocks,
                          comm::Communicator* group) {
    keep(context, blocks, *group);
    return sum_scatter(x, blocks, *group);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gather(gradients[0], blocks_of(context), group_of(context)), {}, {}};
  }
};

struct SumEverywhere : Function<SumEverywhere> {
  static Variable forward(AutogradContext* context, const Variable& x, comm::Communicator* group) {
    keep(context, {}, *group);
    return summed(x, *group);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {summed(gradients[0], group_of(context)), {}};
  }
  static at::Tensor summed(const at::Tensor& x, comm::Communicator& group) {
    at::Tensor sum = on_host(x).clone();
    all_reduce(group, numbers_of(sum), comm::Purpose::kCombine);
    return sum.to(x.device());
  }
};

}  // namespace

std::int64_t RowBlocks::total() const {
  return std::accumulate(num_rows.begin(), num_rows.end(), std::int64_t{0});
}

std::int64_t RowBlocks::first(int rank) const {
  return std::accumulate(num_rows.begin(), num_rows.begin() + rank, std::int64_t{0});
}

RowBlocks row_blocks(std::int64_t count, int num_ranks) {
  RowBlocks blocks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    blocks.num_rows.push_back(parallel::share_of(count, num_ranks, rank).size());
  }
  return blocks;
}

at::Tensor gather_rows(const at::Tensor& x, const RowBlocks& blocks, comm::Communicator& group) {
  return group.size() == 1 ? x : GatherRows::apply(x, blocks, &group);
}

at::Tensor sum_scatter_rows(const at::Tensor& x, const RowBlocks& blocks,
                            comm::Communicator& group) {
  return group.size() == 1 ? x : SumScatterRows::apply(x, blocks, &group);
}

at::Tensor sum_everywhere(const at::Tensor& x, comm::Communicator& group) {
  return group.size() == 1 ? x : SumEverywhere::apply(x, &group);
}

void sum_in_place(at::Tensor& x, comm::Communicator& group, comm::Purpose purpose) {
  if (group.size() == 1) {
    return;
  }
  if (x.device().is_cpu() && x.is_contiguous()) {
    all_reduce(group, numbers_of(x), purpose);
    return;
  }
  const at::Tensor sum = on_host(x);
  all_reduce(group, numbers_of(sum), purpose);
  x.copy_(sum);
}

parallel::Numbers numbers_of(const at::Tensor& tensor) {
  COTERIE_CHECK(tensor.device().is_cpu() && tensor.is_contiguous(), tensor.toString());
  return {tensor.numel() == 0 ? nullptr : tensor.data_ptr(), tensor.numel(), sum_type_of(tensor)};
}

void send_rows(const at::Tensor& x, comm::Communicator& pair) {
  const at::Tensor rows = on_host(x);
  const std::span<const std::byte> bytes = numbers_of(rows).bytes();
  std::vector<std::int64_t> send(2, 0);
  send[static_cast<std::size_t>(1 - pair.rank())] = std::ssize(bytes);
  const std::vector<std::int64_t> receive(2, 0);
  pair.all_to_all(bytes, send, {}, receive, comm::Purpose::kDispatch);
}

at::Tensor receive_rows(at::IntArrayRef shape, const at::TensorOptions& options,
                        comm::Communicator& pair) {
  const at::Tensor rows = at::empty(shape, options.device(at::kCPU));
  const std::span<std::byte> bytes = numbers_of(rows).bytes();
  std::vector<std::int64_t> receive(2, 0);
  receive[static_cast<std::size_t>(1 - pair.rank())] = std::ssize(bytes);
  const std::vector<std::int64_t> send(2, 0);
  pair.all_to_all({}, send, bytes, receive, comm::Purpose::kDispatch);
  return rows.to(options.device());
}

}  // namespace coterie::models
