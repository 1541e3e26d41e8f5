// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/element_type.hpp"

#include <array>

#include "coterie/base/error.hpp"

namespace coterie::models {
namespace {

struct Entry {
  ElementType type;
  std::string_view name;
  std::uint64_t bits;
};

constexpr std::array<Entry, 20> kTypes = {{
    {ElementType::kBool, "BOOL", 8},      {ElementType::kF4, "F4", 4},
    {ElementType::kF6E2M3, "F6_E2M3", 6}, {ElementType::kF6E3M2, "F6_E3M2", 6},
    {ElementType::kU8, "U8", 8},          {ElementType::kI8, "I8", 8},
    {ElementType::kF8E5M2, "F8_E5M2", 8}, {ElementType::kF8E4M3, "F8_E4M3", 8},
    {ElementType::kF8E8M0, "F8_E8M0", 8}, {ElementType::kI16, "I16", 16},
    {ElementType::kU16, "U16", 16},       {ElementType::kF16, "F16", 16},
    {ElementType::kBF16, "BF16", 16},     {ElementType::kI32, "I32", 32},
    {ElementType::kU32, "U32", 32},       {ElementType::kF32, "F32", 32},
    {ElementType::kC64, "C64", 64},       {ElementType::kF64, "F64", 64},
    {ElementType::kI64, "I64", 64},       {ElementType::kU64, "U64", 64},
}};

const Entry& entry_of(ElementType type) {
  for (const Entry& entry : kTypes) {
    if (entry.type == type) {
      return entry;
    }
  }
  fail(ErrorCode::kInternal, "element type ", static_cast<int>(type), " is not in the table");
}

}  // namespace

std::string_view name_of(ElementType type) {
  return entry_of(type).name;
}

std::optional<ElementType> element_type_named(std::string_view name) {
  for (const Entry& entry : kTypes) {
    if (entry.name == name) {
      return entry.type;
    }
  }
  return std::nullopt;
}

std::uint64_t bits_of(ElementType type) {
  return entry_of(type).bits;
}

std::optional<std::uint64_t> bytes_of(ElementType type, std::span<const std::int64_t> shape) {
  std::uint64_t bits = bits_of(type);
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bits, static_cast<std::uint64_t>(size), &bits)) {
      return std::nullopt;
    }
  }
  return bits % 8 == 0 ? std::optional(bits / 8) : std::nullopt;
}

std::string format_shape(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

}  // namespace coterie::models
