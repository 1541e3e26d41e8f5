// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/json.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"

namespace coterie {
namespace {

struct TextPosition {
  std::size_t line = 1;
  std::size_t column = 1;
};

TextPosition position_of(std::string_view text, std::size_t byte) {
  TextPosition position;
  for (std::size_t i = 0; i + 1 < byte && i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++position.line;
      position.column = 1;
    } else {
      ++position.column;
    }
  }
  return position;
}

std::string shorten(std::string text, std::size_t limit = 60) {
  if (text.size() > limit) {
    text.resize(limit);
    text += "...";
  }
  return text;
}

/// Builds the document from the parser's events. Refuses a key that stands twice in one object
/// (parsers disagree on which one counts) and nesting that would exhaust the stack of later
/// readers. Takes time linear in the text, where the library's own builder takes time quadratic in
/// the number of an object's keys (a tokenizer's vocabulary has 10^5).
class DocumentBuilder {
 public:
  DocumentBuilder(std::string_view text, const std::string& source)
      : text_(text), source_(source) {}

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(std::int64_t value) { return add(value); }
  bool number_unsigned(std::uint64_t value) { return add(value); }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& key) {
    COTERIE_REQUIRE(is_new(key), source_, ": key \"", shorten(key),
                    "\" stands twice in one object");
    key_ = std::move(key);
    return true;
  }
  bool parse_error(std::size_t byte, const std::string&, const std::exception& error) {
    const TextPosition at = position_of(text_, byte);
    const std::string reason = error.what();
    const auto colon = reason.find(": ");
    fail(ErrorCode::kBadInput, source_, ":", at.line, ":", at.column,
         ": malformed JSON: ", colon == std::string::npos ? reason : reason.substr(colon + 2));
  }

  Json take() { return std::move(root_); }

 private:
  static constexpr std::size_t kDeepest = 200;
  static constexpr std::size_t kFewKeys = 16;
  struct Level {
    Json* value;
    std::unordered_set<std::string> keys;  // filled when there are more than kFewKeys
  };

  Json* place(Json&& value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *levels_.back().value;
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    auto& members = parent.get_ref<Json::object_t&>();
    members.Container::emplace_back(std::move(key_), std::move(value));
    return &members.back().second;
  }
  template <typename Value>
  bool add(Value&& value) {
    place(Json(std::forward<Value>(value)));
    return true;
  }
  bool open(Json&& empty) {
    COTERIE_REQUIRE(levels_.size() < kDeepest, source_, ": malformed JSON: nested deeper than ",
                    kDeepest, " levels");
    Json* value = place(std::move(empty));
    levels_.push_back({value, {}});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }
  bool is_new(const std::string& key) {
    Level& level = levels_.back();
    const auto& members = level.value->get_ref<Json::object_t&>();
    if (members.size() < kFewKeys) {
      return std::none_of(members.begin(), members.end(),
                          [&](const auto& member) { return member.first == key; });
    }
    if (level.keys.empty()) {
      for (const auto& member : members) {
        level.keys.insert(member.first);
      }
    }
    return level.keys.insert(key).second;
  }

  std::string_view text_;
  const std::string& source_;
  Json root_;
  std::string key_;
  std::vector<Level> levels_;
};

bool is_flat(const Json& array) {
  for (const Json& item : array) {
    if (item.is_structured()) {
      return false;
    }
  }
  return true;
}

void format_into(std::string& out, const Json& value, std::size_t indent) {
  const std::string inner(indent + 2, ' ');
  if (value.is_object() && !value.empty()) {
    out += "{\n";
    bool first = true;
    for (const auto& [key, member] : value.items()) {
      out += (first ? "" : ",\n") + inner + Json(key).dump() + ": ";
      format_into(out, member, indent + 2);
      first = false;
    }
    out += "\n" + std::string(indent, ' ') + "}";
  } else if (value.is_array() && !is_flat(value)) {
    out += "[\n";
    bool first = true;
    for (const Json& item : value) {
      out += (first ? "" : ",\n") + inner;
      format_into(out, item, indent + 2);
      first = false;
    }
    out += "\n" + std::string(indent, ' ') + "]";
  } else {
    out += value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
}

}  // namespace

Json parse_json(std::string_view text, const std::string& source) {
  // The parser takes a zero byte for the end and would ignore what follows.
  const auto zero = text.find('\0');
  COTERIE_REQUIRE(zero == std::string_view::npos, source, ": malformed JSON: a zero byte at byte ",
                  zero);
  DocumentBuilder builder(text, source);
  Json::sax_parse(text, &builder);
  return builder.take();
}

Json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_text_file(path), path.string());
}

std::string format_json(const Json& value) {
  std::string out;
  format_into(out, value, 0);
  out += "\n";
  return out;
}

void write_json_file(const std::filesystem::path& path, const Json& value) {
  write_text_file(path, format_json(value));
}

JsonReader::JsonReader(const Json& value, std::string source, std::string pointer)
    : value_(&value), source_(std::move(source)), pointer_(std::move(pointer)) {}

bool JsonReader::has(const std::string& key) const {
  return value_->is_object() && value_->contains(key);
}

JsonReader JsonReader::at(const std::string& key) const {
  if (!value_->is_object()) {
    refuse("an object");
  }
  const auto found = value_->find(key);
  COTERIE_REQUIRE(found != value_->end(), place(), ": key \"", key, "\" is missing");
  return {*found, source_, pointer_ + "/" + key};
}

JsonReader JsonReader::at(std::size_t index) const {
  COTERIE_REQUIRE(index < size(), place(), ": item ", index, " is missing: there are ", size());
  return {(*value_)[index], source_, pointer_ + "/" + std::to_string(index)};
}

std::size_t JsonReader::size() const {
  if (!value_->is_array()) {
    refuse("an array");
  }
  return value_->size();
}

std::int64_t JsonReader::as_int(std::int64_t low, std::int64_t high) const {
  const bool fits = value_->is_number_integer() &&
                    !(value_->is_number_unsigned() &&
                      value_->get<std::uint64_t>() >
                          static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  const std::int64_t number = fits ? value_->get<std::int64_t>() : 0;
  if (!fits || number < low || number > high) {
    const bool unbounded = low == std::numeric_limits<std::int64_t>::min() &&
                           high == std::numeric_limits<std::int64_t>::max();
    refuse(unbounded ? "a whole number"
                     : join_message("a whole number in [", low, ", ", high, "]"));
  }
  return number;
}

double JsonReader::as_double() const {
  if (!value_->is_number() || !std::isfinite(value_->get<double>())) {
    refuse("a finite number");
  }
  return value_->get<double>();
}

bool JsonReader::as_bool() const {
  if (!value_->is_boolean()) {
    refuse("true or false");
  }
  return value_->get<bool>();
}

std::string JsonReader::as_string() const {
  if (!value_->is_string()) {
    refuse("a string");
  }
  return value_->get<std::string>();
}

std::vector<std::int64_t> JsonReader::as_ints(std::int64_t low, std::int64_t high) const {
  std::vector<std::int64_t> numbers(size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = at(i).as_int(low, high);
  }
  return numbers;
}

std::string JsonReader::place() const {
  return source_ + (pointer_.empty() ? "" : ": " + pointer_);
}

void JsonReader::refuse(const std::string& expected) const {
  fail(ErrorCode::kBadInput, place(), ": expected ", expected, ", found ",
       shorten(value_->dump(-1, ' ', false, Json::error_handler_t::replace)));
}

}  // namespace coterie
