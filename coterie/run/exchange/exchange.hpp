// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coterie/run/comm/comm.hpp"
#include "coterie/run/exchange/byte_buffer.hpp"
#include "coterie/run/exchange/exchange_form.hpp"
#include "coterie/run/exchange/metadata.hpp"
#include "coterie/run/exchange/placement_index.hpp"
#include "coterie/run/exchange/receive_lists.hpp"
#include "coterie/run/exchange/reference.hpp"
#include "coterie/run/exchange/reindex.hpp"
#include "coterie/run/exchange/send_lists.hpp"
#include "coterie/run/exchange/token_routing.hpp"
#include "coterie/run/exchange/traffic_prediction.hpp"
#include "coterie/run/exchange/training_exchange.hpp"
#include "coterie/run/exchange/training_sums.hpp"

/// The door of the room: tokens travel to the devices of their experts and back.
namespace coterie::exchange {

/// The (token, expert) rows that one device computes at a time. Views stay valid until the next
/// call of the exchange.
struct DeviceWork {
  std::int32_t device = 0;
  kernels::ConstMatrixView rows;                 ///< [any, hidden] where inputs stand
  std::span<const std::int32_t> row_of;          ///< [expanded] row of `rows` of each expanded row
  std::span<const std::int64_t> expert_offsets;  ///< [num_slots + 1] expanded rows of each slot
};

/// One layer's exchange between a router and the experts. For each batch of tokens:
///
///     exchange.dispatch(x, routing);
///     for (device : exchange.local_devices())
///       for (part = 0; part < exchange.num_parts(device); ++part)
///         exchange.take_back(experts(exchange.work(device, part)));
///     exchange.combine(y);
///
/// With a communicator, rank r is device r, and `x` holds this rank's tokens. Every rank makes the
/// same four collectives a batch whatever the routing: sizes, metadata, rows, partial sums. Without
/// one, this process stands for all devices ("virtual devices"): the same sums in the same order,
/// to the last bit, and nothing is copied on the way out.
/// Memory is kept from batch to batch. Not thread-safe.
class Exchange {
 public:
  /// `index` and `communicator` (may be null) must outlive the exchange. `where` begins messages,
  /// such as "layer 3". `execution` runs the copies and sums; `buffers` may be shared with
  /// exchanges that take turns (null: own ones). Throws kBadInput if the
  /// communicator's size is not the number of devices.
  Exchange(const PlacementIndex& index, ExchangeOptions options, comm::Communicator* communicator,
           std::string where, const kernels::Execution& execution = {},
           std::shared_ptr<RowBuffers> buffers = {});

  /// Devices whose experts this process computes.
  [[nodiscard]] std::span<const std::int32_t> local_devices() const { return local_devices_; }

  /// Sends each token of x [num_tokens, hidden] (fp32 or bf16) where its experts are. In the
  /// virtual case x must stay in place until `combine`. Throws kBadInput for a routing that breaks
  /// its promises, kPeer if another rank sends something else than it announced.
  void dispatch(kernels::ConstMatrixView x, const TokenRouting& routing);

  /// Number of parts in which a device's rows are to be computed; 0 if it has none.
  [[nodiscard]] std::int64_t num_parts(std::int32_t device) const;
  /// Prepares a part.
  DeviceWork work(std::int32_t device, std::int64_t part);
  /// Takes the experts' outputs [expanded, hidden] fp32 of the part prepared last.
  void take_back(kernels::ConstMatrixView expanded);

  /// Brings the sums home: y [num_tokens, hidden], fp32 or bf16. Every row is written; rows of
  /// tokens without any expert are 0.
  void combine(kernels::MatrixView y);

  /// The lists of the last dispatch.
  [[nodiscard]] const SendLists& send_lists() const { return send_; }
  /// Rows that this process received for a device in the last dispatch.
  [[nodiscard]] std::int64_t num_rows_received(std::int32_t device) const;
  /// Bytes held in row buffers.
  [[nodiscard]] std::size_t buffer_bytes() const { return buffers_->capacity(); }

 private:
  /// Rows [first, second) that a local device works on, in the numbering of `received_entries()`.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> rows_of_device(std::int32_t device) const;
  [[nodiscard]] const RowEntries& received_entries() const {
    return communicator_ == nullptr ? send_.entries : received_;
  }
  void exchange_sizes();
  void exchange_metadata();
  void exchange_rows(kernels::ConstMatrixView x);

  const PlacementIndex& index_;
  ExchangeOptions options_;
  comm::Communicator* communicator_;
  std::string where_;
  kernels::Execution execution_;
  std::vector<std::int32_t> local_devices_;

  std::int64_t hidden_ = 0;
  SendLists send_;
  std::vector<BlockSize> sizes_to_;
  std::vector<BlockSize> sizes_from_;
  RowEntries received_;
  kernels::ConstMatrixView rows_;                 // inputs of the local devices
  std::vector<std::vector<std::int64_t>> parts_;  // [local devices] bounds of the parts
  ReceiveLists lists_;                            // of the part prepared last
  std::vector<std::int32_t> token_of_expanded_;
  kernels::MatrixView partials_;  // [rows received, hidden]

  std::shared_ptr<RowBuffers> buffers_;
};

}  // namespace coterie::exchange
