// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coterie/run/kernels/threads.hpp"

namespace coterie::kernels {

/// Which implementation of the operations runs.
enum class Backend : std::uint8_t {
  kAutomatic,   ///< COTERIE_KERNELS if that variable is set, else the fastest that this machine has
  kReference,   ///< plain loops that sum in double: slow, obviously right
  kGeneric,     ///< portable vectors, any processor
  kAvx2,        ///< AVX2 and FMA
  kAvx512,      ///< AVX-512 F, BW, DQ, VL
  kAvx512Bf16,  ///< as kAvx512, and bf16 products by vdpbf16ps
};

/// "automatic", "reference", "generic", "avx2", "avx512", "avx512_bf16".
const char* name_of(Backend backend) noexcept;

/// The back end of that name; kBadInput naming `source` and the names there are otherwise.
Backend parse_backend(std::string_view name, const std::string& source);

/// Whether this processor and its operating system can run a back end.
bool is_available(Backend backend) noexcept;

/// All that can run here, slowest first, without kAutomatic.
std::vector<Backend> available_backends();

/// kAutomatic turned into what it stands for (environment variable COTERIE_KERNELS, read anew each
/// time, then the machine); any other is checked: kUnsupported names it if this machine lacks it.
Backend resolve_backend(Backend backend);

/// How many blocks of products this process has computed with a back end: proof of what really ran.
std::uint64_t num_products_run(Backend backend) noexcept;

/// Where and how an operation runs. Cheap to copy; the pool must outlive it.
struct Execution {
  Threads* threads = nullptr;  ///< nullptr: the calling thread alone
  Backend backend = Backend::kAutomatic;

  [[nodiscard]] Threads& pool() const { return threads != nullptr ? *threads : Threads::single(); }
};

}  // namespace coterie::kernels
