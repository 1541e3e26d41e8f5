// SPDX-License-Identifier: Apache-2.0
#include "cli/whole_numbers.hpp"

#include <charconv>
#include <cstdint>
#include <string>

namespace coterie::cli {
namespace {

/// What is wrong with the text as a number from 0 to the largest `Number`; "": nothing.
template <typename Number>
std::string fault_of(const std::string& text) {
  Number value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range) {
    return text + (text.front() == '-' ? ": must not be negative" : ": is too large");
  }
  const bool is_negative = text.starts_with('-') && text.size() > 1 &&
                           text.find_first_not_of("0123456789", 1) == std::string::npos;
  if (is_negative) {
    return text + ": must not be negative";
  }
  const bool is_decimal = error == std::errc{} && rest == end && text.front() != '+' &&
                          (text.size() == 1 || text.front() != '0');
  return is_decimal ? "" : text + ": must be a whole number in decimal digits";
}

}  // namespace

void check_whole_numbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type.starts_with("INT")) {
      option->check(fault_of<std::int64_t>);
    } else if (type.starts_with("UINT")) {
      option->check(fault_of<std::uint64_t>);
    }
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    check_whole_numbers(*command);
  }
}

}  // namespace coterie::cli
