// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace coterie::profiling {

/// Seconds since some fixed moment, never falling. Tests give one of their own.
using Clock = std::function<double()>;

/// The steady clock of this machine.
Clock steady_clock();

}  // namespace coterie::profiling
