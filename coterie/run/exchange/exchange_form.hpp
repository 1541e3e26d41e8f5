// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "coterie/run/kernels/kernels.hpp"

namespace coterie::exchange {

/// What one row of the exchange stands for; reports compare the two.
enum class ExchangeForm : std::uint8_t {
  kPerDevice,  ///< one row a (token, device): a token travels once to each device (Occult)
  kPerExpert,  ///< one row a (token, expert): the classical baseline
};

/// "per_device" or "per_expert".
const char* name_of(ExchangeForm form) noexcept;
/// The inverse; kBadInput names the text and the valid names.
ExchangeForm exchange_form_of(std::string_view name);

/// How rows travel. Every rank of a group must use equal options.
struct ExchangeOptions {
  ExchangeForm form = ExchangeForm::kPerDevice;
  /// Type in which partial sums (classical form: expert rows) go home: kFloat32, or kBfloat16,
  /// which halves the bytes and rounds every partial sum once.
  kernels::DType partial_type = kernels::DType::kFloat32;
  /// Most (token, expert) rows that are computed at a time on a device: bounds the memory of the
  /// products. Results do not depend on it.
  std::int64_t max_expanded_rows = 16384;
  /// Fills every buffer with NaN before each use. For tests: a value that nobody wrote shows.
  bool poison_buffers = false;

  bool operator==(const ExchangeOptions&) const = default;
};

/// Throws kBadInput if an option has a value outside its documented set.
void check_exchange_options(const ExchangeOptions& options);

}  // namespace coterie::exchange
