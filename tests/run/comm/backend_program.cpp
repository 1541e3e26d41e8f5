// SPDX-License-Identifier: Apache-2.0
// One rank of the test of MpiBackend through c10d's own calls. Ends with 0, or with a message
// and 1.
#include <ATen/ATen.h>

#include <cstdio>

#include "coterie/run/comm/mpi_backend.hpp"

namespace coterie::comm {
namespace {

/// What rank `rank` brings: small whole numbers, so that every sum is exact.
at::Tensor data_of(int rank, int64_t count, at::ScalarType type) {
  return (at::arange(count, at::kFloat).remainder(13) + rank).to(type);
}

at::Tensor sum_of_all(int size, int64_t count, at::ScalarType type) {
  at::Tensor sum = at::zeros({count}, type);
  for (int r = 0; r < size; ++r) {
    sum += data_of(r, count, type);
  }
  return sum;
}

void test_reductions(MpiBackend& backend, int64_t count, at::ScalarType type) {
  const int size = backend.getSize();
  std::vector<at::Tensor> tensors = {data_of(backend.getRank(), count, type)};
  backend.allreduce(tensors, {})->wait();
  TORCH_CHECK(at::equal(tensors[0], sum_of_all(size, count, type)), "allreduce ", count);
  at::Tensor input = data_of(backend.getRank(), count * size, type);
  at::Tensor output = at::empty({count}, type);
  backend._reduce_scatter_base(output, input, {})->wait();
  const at::Tensor all = sum_of_all(size, count * size, type);
  TORCH_CHECK(at::equal(output, all.narrow(0, count * backend.getRank(), count)), "reduce_scatter ",
              count);
}

void test_average(MpiBackend& backend) {
  std::vector<at::Tensor> tensors = {at::full({3}, 2.0F * static_cast<float>(backend.getRank()))};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::AVG;
  backend.allreduce(tensors, options)->wait();
  TORCH_CHECK(at::equal(tensors[0], at::full({3}, static_cast<float>(backend.getSize() - 1))),
              "average");
}

void test_gathers(MpiBackend& backend) {
  const int size = backend.getSize();
  at::Tensor mine = at::full({2, 3}, backend.getRank(), at::kInt);
  at::Tensor all = at::empty({2 * size, 3}, at::kInt);
  backend._allgather_base(all, mine, {})->wait();
  std::vector<std::vector<at::Tensor>> lists(1);
  for (int r = 0; r < size; ++r) {
    lists[0].push_back(at::empty({2, 3}, at::kInt));
  }
  std::vector<at::Tensor> inputs = {mine};
  backend.allgather(lists, inputs, {})->wait();
  for (int r = 0; r < size; ++r) {
    TORCH_CHECK(at::equal(all.narrow(0, 2 * r, 2), at::full({2, 3}, r, at::kInt)), "gather ", r);
    TORCH_CHECK(at::equal(lists[0][static_cast<std::size_t>(r)], all.narrow(0, 2 * r, 2)), "list ",
                r);
  }
}

/// Rank r sends r + t + 1 rows of two columns to rank t; several calls are under way at once.
void test_all_to_all(MpiBackend& backend) {
  const int size = backend.getSize();
  const int me = backend.getRank();
  std::vector<int64_t> sends;
  std::vector<int64_t> receives;
  std::vector<at::Tensor> expected;
  for (int r = 0; r < size; ++r) {
    sends.push_back(me + r + 1);
    receives.push_back(me + r + 1);
    expected.push_back(at::full({me + r + 1, 2}, r, at::kLong));
  }
  const int64_t num_rows = at::cat(expected).size(0);
  std::vector<at::Tensor> outputs;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (int call = 0; call < 5; ++call) {
    at::Tensor input = at::full({num_rows, 2}, me, at::kLong);
    outputs.push_back(at::zeros({num_rows, 2}, at::kLong));
    works.push_back(backend.alltoall_base(outputs.back(), input, receives, sends, {}));
  }
  for (std::size_t call = 0; call < works.size(); ++call) {
    works[call]->wait();
    TORCH_CHECK(works[call]->isCompleted() && works[call]->isSuccess(), "work ", call);
    TORCH_CHECK(at::equal(outputs[call], at::cat(expected)), "all_to_all ", call);
  }
  std::vector<int64_t> equal_parts;
  at::Tensor input = at::full({size, 4}, me, at::kByte);
  at::Tensor output = at::empty({size, 4}, at::kByte);
  const auto work = backend.alltoall_base(output, input, equal_parts, equal_parts, {});
  work->getFuture()->wait();
  TORCH_CHECK(at::equal(output.select(1, 0), at::arange(size, at::kByte)), "equal parts");
}

void test_refusals(MpiBackend& backend) {
  const auto is_refused = [](const auto& call) {
    try {
      call();
    } catch (const c10::Error&) {
      return true;
    }
    return false;
  };
  at::Tensor odd = at::empty({backend.getSize() + 1});
  at::Tensor strided = at::empty({4, 4}).t();
  std::vector<int64_t> none;
  std::vector<int64_t> negative(static_cast<std::size_t>(backend.getSize()), -1);
  TORCH_CHECK(is_refused([&] { backend.alltoall_base(odd, odd, none, none, {}); }), "odd");
  TORCH_CHECK(is_refused([&] { backend.alltoall_base(strided, strided, none, none, {}); }), "t");
  TORCH_CHECK(is_refused([&] { backend.alltoall_base(odd, odd, negative, negative, {}); }), "-1");
}

void test_all() {
  const auto backend = c10::make_intrusive<MpiBackend>(std::chrono::minutes(1));
  for (const int64_t count : {0, 1, 7, 5000}) {
    test_reductions(*backend, count, at::kFloat);
    test_reductions(*backend, count, at::kBFloat16);
    test_reductions(*backend, count, at::kLong);
  }
  test_average(*backend);
  test_gathers(*backend);
  test_all_to_all(*backend);
  test_refusals(*backend);
  std::vector<at::Tensor> tensors = {at::full({5}, backend->getRank() + 1.5)};
  backend->broadcast(tensors, {})->wait();
  TORCH_CHECK(at::equal(tensors[0], at::full({5}, 1.5)), "broadcast");
  backend->barrier({})->wait();
  backend->close_group(std::chrono::minutes(1));
}

}  // namespace
}  // namespace coterie::comm

int main() {
  try {
    coterie::comm::test_all();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
