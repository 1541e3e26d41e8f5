// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace coterie::models {

/// Element types of the safetensors format. The room computes with kF32, kBF16 and kF16 and carries
/// the others through as raw bytes.
enum class ElementType : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

/// Name in a file's header ("F32", "BF16", ...).
std::string_view name_of(ElementType type);

/// The type of that name; nothing if the format has no such type.
std::optional<ElementType> element_type_named(std::string_view name);

/// Bits of one element (F4 and F6 have less than a byte).
std::uint64_t bits_of(ElementType type);

/// Bytes of a dense tensor; nothing if the count overflows 64 bits, a size is negative, or the bits
/// do not fill whole bytes.
std::optional<std::uint64_t> bytes_of(ElementType type, std::span<const std::int64_t> shape);

/// "[64, 128]"
std::string format_shape(std::span<const std::int64_t> shape);

}  // namespace coterie::models
