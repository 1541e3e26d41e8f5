// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coterie/run/comm/abortable.hpp"

namespace coterie::comm {

class MpiTransport;

/// c10d collectives of CPU tensors over Open MPI, for the ranks of MPI_COMM_WORLD or a part of
/// them. One worker thread carries the calls out in the order they were made; while it waits it
/// sleeps. Sums are formed in rank order, so that they are the same on all ranks and from run to
/// run (16-bit floats: in fp32). Tensors must be dense and stay alive until the Work is complete.
class MpiBackend final : public c10d::Backend, public Abortable {
 public:
  /// Collective over all ranks. `timeout` is for calls that do not bring their own.
  explicit MpiBackend(std::chrono::milliseconds timeout);
  ~MpiBackend() override;

  // The names below are c10d's.
  const std::string getBackendName() const override { return "mpi"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  /// SUM and AVG.
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  /// SUM and AVG.
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

  void abort_group(const std::string& message) noexcept override;
  void close_group(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10d::Backend> split_group(int color,
                                                std::chrono::milliseconds timeout) override;
  /// A part of another group.
  MpiBackend(std::chrono::milliseconds timeout, std::unique_ptr<MpiTransport> transport);

 private:
  class MpiWork;
  using Task = std::function<void(MpiTransport&)>;

  c10::intrusive_ptr<c10d::Work> enqueue(c10d::OpType type, std::vector<at::Tensor> results,
                                         Task task);
  void run_worker();
  [[nodiscard]] std::chrono::milliseconds limit(std::chrono::milliseconds own) const;

  std::unique_ptr<MpiTransport> transport_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable has_work_;
  std::deque<std::pair<c10::intrusive_ptr<MpiWork>, Task>> queue_;
  bool is_stopping_ = false;
  std::thread worker_;
};

}  // namespace coterie::comm
