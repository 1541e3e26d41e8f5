// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/comm/c10d_communicator.hpp"

#include <ATen/ATen.h>

#include <exception>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/run/comm/abortable.hpp"
#include "coterie/run/comm/collective.hpp"
#include "coterie/run/comm/single.hpp"

namespace coterie::comm {

namespace {

/// The bytes as a tensor, without a copy.
at::Tensor tensor_of(std::span<const std::byte> bytes) {
  if (bytes.empty()) {
    return at::empty({0}, at::kByte);
  }
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {std::ssize(bytes)}, at::kByte);
}

}  // namespace

C10dCommunicator::C10dCommunicator(c10::intrusive_ptr<c10d::Backend> backend,
                                   std::chrono::milliseconds timeout, bool is_part)
    : backend_(std::move(backend)), timeout_(timeout), is_part_(is_part) {}

C10dCommunicator::~C10dCommunicator() {
  if (has_failed_ || is_part_) {
    return;
  }
  if (std::uncaught_exceptions() > 0) {
    abort("left on an error");
    return;
  }
  try {
    if (auto* own = dynamic_cast<Abortable*>(backend_.get())) {
      own->close_group(timeout_);
    }
  } catch (const std::exception&) {
    // The group is broken; whoever broke it reports. MPI is then not shut down in an orderly way,
    // which the launcher reports as well.
  }
}

template <typename Start>
void C10dCommunicator::finish(const Start& start) {
  try {
    start()->wait();
  } catch (const Error&) {
    has_failed_ = true;
    throw;
  } catch (const std::exception& error) {
    has_failed_ = true;
    fail(ErrorCode::kPeer, name(), " on rank ", rank(), ": ", error.what());
  }
  ++traffic_.num_collectives;
}

void C10dCommunicator::all_to_all(std::span<const std::byte> send,
                                  std::span<const std::int64_t> send_bytes,
                                  std::span<std::byte> receive,
                                  std::span<const std::int64_t> receive_bytes, Purpose purpose) {
  check_all_to_all(send, send_bytes, receive, receive_bytes, size());
  at::Tensor input = tensor_of(send);
  at::Tensor output = tensor_of(receive);
  std::vector<std::int64_t> input_splits(send_bytes.begin(), send_bytes.end());
  std::vector<std::int64_t> output_splits(receive_bytes.begin(), receive_bytes.end());
  finish([&] {
    return backend_->alltoall_base(output, input, output_splits, input_splits,
                                   {.timeout = timeout_});
  });
  count_all_to_all(traffic_, send_bytes, rank(), purpose);
}

void C10dCommunicator::all_gather(std::span<const std::byte> send, std::span<std::byte> receive,
                                  Purpose purpose) {
  check_all_gather(send, receive, size());
  at::Tensor input = tensor_of(send);
  at::Tensor output = tensor_of(receive);
  finish([&] { return backend_->_allgather_base(output, input, {.timeout = timeout_}); });
  count_to_all_others(traffic_, std::ssize(send), size(), purpose);
}

void C10dCommunicator::broadcast(std::span<std::byte> data, int root, Purpose purpose) {
  check_root(root, size());
  std::vector<at::Tensor> tensors = {tensor_of(data)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = timeout_;
  finish([&] { return backend_->broadcast(tensors, options); });
  if (rank() == root) {
    count_to_all_others(traffic_, std::ssize(data), size(), purpose);
  }
}

void C10dCommunicator::barrier() {
  c10d::BarrierOptions options;
  options.timeout = timeout_;
  finish([&] { return backend_->barrier(options); });
}

std::unique_ptr<Communicator> C10dCommunicator::split(int color) {
  check_color(color);
  auto* own = dynamic_cast<Abortable*>(backend_.get());
  if (own == nullptr) {
    fail(ErrorCode::kUnsupported, name(), " cannot cut its group into parts");
  }
  c10::intrusive_ptr<c10d::Backend> part;
  try {
    part = own->split_group(color, timeout_);
  } catch (const Error&) {
    has_failed_ = true;
    throw;
  }
  count_to_all_others(traffic_, sizeof(color), size(), Purpose::kControl);
  ++traffic_.num_collectives;
  if (part->getSize() == 1) {  // needs neither thread nor message
    return std::make_unique<SingleCommunicator>([parent = backend_](const std::string& message) {
      dynamic_cast<Abortable&>(*parent).abort_group(message);
    });
  }
  return std::make_unique<C10dCommunicator>(std::move(part), timeout_, true);
}

void C10dCommunicator::abort(const std::string& message) noexcept {
  has_failed_ = true;
  if (auto* own = dynamic_cast<Abortable*>(backend_.get())) {
    own->abort_group(message);
  } else {
    backend_->abort();
  }
}

}  // namespace coterie::comm
