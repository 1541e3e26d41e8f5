// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/comm/mpi_backend.hpp"

#include <ATen/ATen.h>
#include <sys/prctl.h>

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/run/comm/mpi_transport.hpp"

namespace coterie::comm {

namespace {

using Sends = std::vector<std::span<const std::byte>>;
using Receives = std::vector<std::span<std::byte>>;

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.is_contiguous(),
              "mpi: needs a contiguous tensor in CPU memory, got ", tensor.toString(), " on ",
              tensor.device());
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

/// Cuts a tensor's bytes by rows of its first dimension: `splits` rows a rank, or equal parts if it
/// is empty.
Receives cut(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size) {
  const std::span<std::byte> all = bytes_of(tensor);
  const int64_t num_rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  std::vector<int64_t> rows = splits;
  if (rows.empty()) {
    TORCH_CHECK(num_rows % size == 0, "mpi: ", num_rows, " rows do not divide by ", size,
                " ranks; give split sizes");
    rows.assign(static_cast<std::size_t>(size), num_rows / size);
  }
  TORCH_CHECK(std::ssize(rows) == size, "mpi: ", rows.size(), " split sizes for ", size, " ranks");
  const std::size_t row_bytes = num_rows == 0 ? 0 : all.size() / static_cast<std::size_t>(num_rows);
  Receives parts;
  std::size_t at = 0;
  for (const int64_t count : rows) {
    TORCH_CHECK(count >= 0, "mpi: negative split size ", count);
    const std::size_t num_bytes = static_cast<std::size_t>(count) * row_bytes;
    TORCH_CHECK(at + num_bytes <= all.size(), "mpi: split sizes exceed the ", num_rows, " rows");
    parts.push_back(all.subspan(at, num_bytes));
    at += num_bytes;
  }
  TORCH_CHECK(at == all.size(), "mpi: split sizes cover less than the ", num_rows, " rows");
  return parts;
}

Sends as_sends(const Receives& parts) {
  return {parts.begin(), parts.end()};
}

at::Tensor& only(std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(tensors.size() == 1, "mpi: one tensor a call, got ", tensors.size());
  return tensors[0];
}

/// Rows of `parts` [size, n] added in rank order; 16-bit floats are added in fp32.
at::Tensor sum_in_rank_order(const at::Tensor& parts, const c10d::ReduceOp& op) {
  const auto kind = static_cast<c10d::ReduceOp::RedOpType>(op);
  TORCH_CHECK(kind == c10d::ReduceOp::SUM || kind == c10d::ReduceOp::AVG,
              "mpi: reductions are SUM or AVG");
  const bool is_half = parts.scalar_type() == at::kBFloat16 || parts.scalar_type() == at::kHalf;
  at::Tensor sum = parts[0].to(is_half ? at::kFloat : parts.scalar_type(), false, true);
  for (int64_t r = 1; r < parts.size(0); ++r) {
    sum.add_(parts[r]);
  }
  if (kind == c10d::ReduceOp::AVG) {
    sum.div_(parts.size(0));
  }
  return sum.to(parts.scalar_type());
}

/// Each rank's share of the sum of `input` [size, n] over all ranks.
at::Tensor sum_of_ranks(MpiTransport& transport, const at::Tensor& input, const c10d::ReduceOp& op,
                        CollectiveKind kind, std::chrono::milliseconds timeout) {
  const at::Tensor parts = at::empty_like(input);
  transport.exchange({kind, 0, as_sends(cut(input, {}, transport.size())),
                      cut(parts, {}, transport.size()), timeout});
  return sum_in_rank_order(parts, op);
}

void all_gather(MpiTransport& transport, const at::Tensor& input, const Receives& parts,
                CollectiveKind kind, std::chrono::milliseconds timeout) {
  const Sends sends(static_cast<std::size_t>(transport.size()), bytes_of(input));
  transport.exchange({kind, 0, sends, parts, timeout});
}

}  // namespace

class MpiBackend::MpiWork final : public c10d::Work {
 public:
  MpiWork(int rank, c10d::OpType type, std::vector<at::Tensor> results)
      : Work(rank, type),
        results_(std::move(results)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()))) {}

  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

  void complete(std::exception_ptr failure) {
    if (failure) {
      future_->setError(failure);
    } else {
      future_->markCompleted(at::IValue(results_));
    }
    finish(std::move(failure));
  }

 private:
  std::vector<at::Tensor> results_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

MpiBackend::MpiBackend(std::chrono::milliseconds timeout)
    : MpiBackend(timeout, std::make_unique<MpiTransport>()) {}

MpiBackend::MpiBackend(std::chrono::milliseconds timeout, std::unique_ptr<MpiTransport> transport)
    : Backend(transport->rank(), transport->size()),
      transport_(std::move(transport)),
      timeout_(timeout),
      worker_([this] { run_worker(); }) {}

MpiBackend::~MpiBackend() {
  {
    const std::scoped_lock lock(mutex_);
    is_stopping_ = true;
  }
  has_work_.notify_all();
  worker_.join();
}

void MpiBackend::run_worker() {
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns: short sleeps end when asked, not 50 us later
  while (true) {
    std::pair<c10::intrusive_ptr<MpiWork>, Task> next;
    {
      std::unique_lock lock(mutex_);
      has_work_.wait(lock, [this] { return is_stopping_ || !queue_.empty(); });
      if (queue_.empty()) {
        return;
      }
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    std::exception_ptr failure;
    try {
      next.second(*transport_);
    } catch (...) {
      failure = std::current_exception();
    }
    next.second = nullptr;
    next.first->complete(std::move(failure));
  }
}

c10::intrusive_ptr<c10d::Work> MpiBackend::enqueue(c10d::OpType type,
                                                   std::vector<at::Tensor> results, Task task) {
  auto work = c10::make_intrusive<MpiWork>(rank_, type, std::move(results));
  {
    const std::scoped_lock lock(mutex_);
    queue_.emplace_back(work, std::move(task));
  }
  has_work_.notify_one();
  return work;
}

std::chrono::milliseconds MpiBackend::limit(std::chrono::milliseconds own) const {
  return own < std::chrono::milliseconds(0) ? timeout_ : own;
}

c10::intrusive_ptr<c10d::Work> MpiBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                         std::vector<int64_t>& output_splits,
                                                         std::vector<int64_t>& input_splits,
                                                         const c10d::AllToAllOptions& options) {
  return enqueue(c10d::OpType::ALLTOALL_BASE, {output},
                 [output, input, sends = as_sends(cut(input, input_splits, size_)),
                  receives = cut(output, output_splits, size_),
                  timeout = limit(options.timeout)](MpiTransport& transport) {
                   transport.exchange({CollectiveKind::kAllToAll, 0, sends, receives, timeout});
                 });
}

c10::intrusive_ptr<c10d::Work> MpiBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                           const c10d::AllgatherOptions& options) {
  TORCH_CHECK(output.nbytes() == input.nbytes() * static_cast<std::size_t>(size_),
              "mpi: all-gather of ", input.nbytes(), " bytes into ", output.nbytes());
  Receives parts;
  for (int r = 0; r < size_; ++r) {
    parts.push_back(
        bytes_of(output).subspan(input.nbytes() * static_cast<std::size_t>(r), input.nbytes()));
  }
  return enqueue(c10d::OpType::_ALLGATHER_BASE, {output},
                 [input, output, parts = std::move(parts),
                  timeout = limit(options.timeout)](MpiTransport& transport) {
                   all_gather(transport, input, parts, CollectiveKind::kAllGather, timeout);
                 });
}

c10::intrusive_ptr<c10d::Work> MpiBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                     std::vector<at::Tensor>& inputs,
                                                     const c10d::AllgatherOptions& options) {
  TORCH_CHECK(outputs.size() == 1 && std::ssize(outputs[0]) == size_,
              "mpi: all-gather needs one output list with a tensor a rank");
  Receives parts;
  for (const at::Tensor& tensor : outputs[0]) {
    parts.push_back(bytes_of(tensor));
  }
  return enqueue(c10d::OpType::ALLGATHER, outputs[0],
                 [input = only(inputs), kept = outputs[0], parts = std::move(parts),
                  timeout = limit(options.timeout)](MpiTransport& transport) {
                   all_gather(transport, input, parts, CollectiveKind::kAllGather, timeout);
                 });
}

c10::intrusive_ptr<c10d::Work> MpiBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                     const c10d::BroadcastOptions& options) {
  const int root = static_cast<int>(options.rootRank);
  return enqueue(
      c10d::OpType::BROADCAST, tensors,
      [tensor = only(tensors), root, timeout = limit(options.timeout)](MpiTransport& transport) {
        const std::span<std::byte> data = bytes_of(tensor);
        Sends sends(static_cast<std::size_t>(transport.size()));
        Receives receives(sends.size());
        if (transport.rank() == root) {
          std::ranges::fill(sends, data);
          sends[static_cast<std::size_t>(root)] = {};
        } else {
          receives[static_cast<std::size_t>(root)] = data;
        }
        transport.exchange({CollectiveKind::kBroadcast, root, sends, receives, timeout});
      });
}

c10::intrusive_ptr<c10d::Work> MpiBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                     const c10d::AllreduceOptions& options) {
  return enqueue(c10d::OpType::ALLREDUCE, tensors,
                 [tensor = only(tensors), op = options.reduceOp,
                  timeout = limit(options.timeout)](MpiTransport& transport) {
                   const int64_t share = (tensor.numel() + transport.size() - 1) / transport.size();
                   at::Tensor padded = at::zeros({transport.size(), share}, tensor.options());
                   padded.view(-1).narrow(0, 0, tensor.numel()).copy_(tensor.reshape(-1));
                   const at::Tensor mine =
                       sum_of_ranks(transport, padded, op, CollectiveKind::kAllReduce, timeout);
                   all_gather(transport, mine, cut(padded, {}, transport.size()),
                              CollectiveKind::kAllReduce, timeout);
                   tensor.copy_(padded.view(-1).narrow(0, 0, tensor.numel()).view(tensor.sizes()));
                 });
}

c10::intrusive_ptr<c10d::Work> MpiBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(input.numel() == output.numel() * size_ && input.dtype() == output.dtype(),
              "mpi: reduce-scatter of ", input.numel(), " numbers into ", output.numel());
  return enqueue(
      c10d::OpType::_REDUCE_SCATTER_BASE, {output},
      [output, input, op = options.reduceOp,
       timeout = limit(options.timeout)](MpiTransport& transport) {
        const at::Tensor rows = input.contiguous().view({transport.size(), -1});
        output.copy_(sum_of_ranks(transport, rows, op, CollectiveKind::kReduceScatter, timeout)
                         .view(output.sizes()));
      });
}

c10::intrusive_ptr<c10d::Work> MpiBackend::barrier(const c10d::BarrierOptions& options) {
  return enqueue(c10d::OpType::BARRIER, {},
                 [timeout = limit(options.timeout)](MpiTransport& transport) {
                   const Sends sends(static_cast<std::size_t>(transport.size()));
                   const Receives receives(sends.size());
                   transport.exchange({CollectiveKind::kBarrier, 0, sends, receives, timeout});
                 });
}

void MpiBackend::abort_group(const std::string& message) noexcept {
  transport_->abort(message);
}

void MpiBackend::close_group(std::chrono::milliseconds timeout) {
  enqueue(c10d::OpType::BARRIER, {}, [timeout](MpiTransport& transport) {
    transport.close(timeout);
  })->wait();
}

c10::intrusive_ptr<c10d::Backend> MpiBackend::split_group(int color,
                                                          std::chrono::milliseconds timeout) {
  std::unique_ptr<MpiTransport> part;
  enqueue(c10d::OpType::BARRIER, {}, [&part, color, timeout](MpiTransport& transport) {
    part = transport.split(color, timeout);
  })->wait();
  return c10::make_intrusive<MpiBackend>(timeout_, std::move(part));
}

}  // namespace coterie::comm
