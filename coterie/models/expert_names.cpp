// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/expert_names.hpp"

#include <charconv>
#include <string_view>

#include "coterie/models/family.hpp"

namespace coterie::models {
namespace {

/// The number at `position`, which ends at a '.' or with the text; sets `end` behind it.
std::optional<std::int32_t> number_at(std::string_view text, std::size_t position,
                                      std::size_t& end) {
  std::int32_t number = 0;
  const char* last = text.data() + text.size();
  const auto result = std::from_chars(text.data() + position, last, number);
  end = static_cast<std::size_t>(result.ptr - text.data());
  if (result.ec != std::errc{} || number < 0 || (end < text.size() && text[end] != '.')) {
    return std::nullopt;
  }
  return number;
}

/// "model.layers.3.mlp.gate." for the router weight "model.layers.3.mlp.gate.weight"
std::string module_of(const std::string& tensor) {
  return tensor.substr(0, tensor.rfind('.') + 1);
}

}  // namespace

std::optional<ExpertName> parse_expert_name(const std::string& tensor, const std::string& family) {
  constexpr std::string_view kLayers = "layers.";
  constexpr std::string_view kExperts = ".experts.";
  const auto layers = tensor.find(kLayers);
  std::size_t end = 0;
  if (layers == std::string::npos) {
    return std::nullopt;
  }
  const auto layer = number_at(tensor, layers + kLayers.size(), end);
  if (!layer) {
    return std::nullopt;
  }
  ExpertName name{*layer, -1, "", ""};
  const auto experts = tensor.find(kExperts, end);
  if (experts != std::string::npos) {
    const std::size_t begin = experts + kExperts.size();
    if (const auto expert = number_at(tensor, begin, end)) {
      name.expert = *expert;
      name.before = tensor.substr(0, begin);
      name.after = tensor.substr(end);
    }
    return name;
  }
  for (const std::string& router : family_named(family, tensor).names.router) {
    if (tensor.starts_with(module_of(fill_name(router, *layer)))) {
      return name;
    }
  }
  return std::nullopt;
}

}  // namespace coterie::models
