// SPDX-License-Identifier: Apache-2.0
// Reads tokenizer.json. What is not understood is refused by name.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/models/tokenizer_json.hpp"
#include "coterie/models/tokenizer_parts.hpp"

namespace coterie::models {
namespace {

constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// `\w+|[^\w\s]+` as Rust's regex crate understands it.
std::string whitespace_pattern() {
  const std::string word(kRustWord);
  return "[" + word + "]+|[^\\s" + word + "]+";
}

NormalizerStep read_normalizer_step(const JsonReader& reader) {
  static constexpr std::pair<std::string_view, NormalForm> kForms[] = {{"NFC", NormalForm::kNfc},
                                                                       {"NFD", NormalForm::kNfd},
                                                                       {"NFKC", NormalForm::kNfkc},
                                                                       {"NFKD", NormalForm::kNfkd}};
  NormalizerStep step;
  const std::string type = type_of(reader);
  for (const auto& [name, form] : kForms) {
    if (type == name) {
      step.form = form;
      return step;
    }
  }
  if (type == "Prepend") {
    step.prepend = reader.at("prepend").as_string();
  } else if (type == "Replace") {
    step.replace = pattern_of(reader.at("pattern"));
    step.replacement = reader.at("content").as_string();
  } else {
    refuse_component(reader, "normalizer", type,
                     "NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence");
  }
  return step;
}

SplitBehavior behavior_of(const JsonReader& reader) {
  static constexpr std::pair<std::string_view, SplitBehavior> kBehaviors[] = {
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  const std::string name = reader.as_string();
  for (const auto& [known, behavior] : kBehaviors) {
    if (name == known) {
      return behavior;
    }
  }
  reader.refuse("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

SplitStep read_split_step(const JsonReader& reader) {
  SplitStep step;
  const std::string type = type_of(reader);
  if (type == "ByteLevel") {
    step.add_prefix_space = flag_of(reader, "add_prefix_space", true);
    step.cuts = flag_of(reader, "use_regex", true);
    step.pattern.emplace(kByteLevelPattern, reader.place());
  } else if (type == "Split") {
    step.pattern.emplace(pattern_of(reader.at("pattern")));
    step.behavior = behavior_of(reader.at("behavior"));
    step.invert = flag_of(reader, "invert", false);
  } else if (type == "Digits") {
    step.behavior = flag_of(reader, "individual_digits", false) ? SplitBehavior::kIsolated
                                                                : SplitBehavior::kContiguous;
  } else if (type == "Whitespace") {
    step.pattern.emplace(whitespace_pattern(), reader.place());
    step.behavior = SplitBehavior::kRemoved;
    step.invert = true;
  } else if (type == "WhitespaceSplit") {
    step.pattern.emplace("\\s", reader.place());
    step.behavior = SplitBehavior::kRemoved;
  } else if (type == "Metaspace") {
    step.metaspace = one_character(reader.at("replacement"));
    step.prepend_scheme = prepend_scheme_of(reader);
    step.cuts = flag_of(reader, "split", true);
    step.pattern.emplace(Regex::escape(step.metaspace), reader.place());
    step.behavior = SplitBehavior::kMergedWithNext;
  } else {
    refuse_component(reader, "pre-tokenizer", type,
                     "ByteLevel, Split, Digits, Whitespace, WhitespaceSplit, Metaspace, Sequence");
  }
  return step;
}

struct PreTokenizer {
  std::vector<SplitStep> steps;
  bool is_byte_level = false;
};

PreTokenizer read_pre_tokenizer(const JsonReader& root) {
  PreTokenizer result;
  if (!is_set(root, "pre_tokenizer")) {
    return result;
  }
  for_each_step(root.at("pre_tokenizer"), "pretokenizers", [&](const JsonReader& reader) {
    if (result.is_byte_level) {
      fail(ErrorCode::kUnsupported, reader.place(),
           ": a pre-tokenizer after ByteLevel is not supported");
    }
    result.steps.push_back(read_split_step(reader));
    result.is_byte_level = type_of(reader) == "ByteLevel";
  });
  return result;
}

void refuse_model_options(const JsonReader& model) {
  const std::string type = is_set(model, "type") ? type_of(model) : "BPE";
  if (type != "BPE") {
    refuse_component(model, "model", type, "BPE");
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (is_set(model, affix) && !model.at(affix).as_string().empty()) {
      fail(ErrorCode::kUnsupported, model.at(affix).place(), ": \"", model.at(affix).as_string(),
           "\" is not supported");
    }
  }
  if (is_set(model, "dropout") && model.at("dropout").as_double() != 0.0) {
    fail(ErrorCode::kUnsupported, model.at("dropout").place(),
         ": merges dropped at random are not supported");
  }
}

std::pair<std::string, std::string> read_merge(const JsonReader& merge) {
  if (merge.value().is_array()) {
    COTERIE_REQUIRE(merge.size() == 2, merge.place(), ": expected two tokens, found ",
                    merge.size());
    return {merge.at(0).as_string(), merge.at(1).as_string()};
  }
  const std::string text = merge.as_string();
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    merge.refuse("two tokens with one space between them");
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

BpeDescription read_model(const JsonReader& model, bool is_byte_level) {
  refuse_model_options(model);
  BpeDescription description;
  description.place = model.place();
  description.is_byte_level = is_byte_level;
  description.fuse_unknown = flag_of(model, "fuse_unk", false);
  description.ignore_merges = flag_of(model, "ignore_merges", false);
  description.byte_fallback = flag_of(model, "byte_fallback", false);
  if (description.byte_fallback && is_byte_level) {
    fail(ErrorCode::kUnsupported, model.place(),
         "/byte_fallback: true beside a ByteLevel pre-tokenizer is not supported");
  }
  if (is_set(model, "unk_token")) {
    description.unknown_token = model.at("unk_token").as_string();
  }
  const JsonReader vocabulary = model.at("vocab");
  if (!vocabulary.value().is_object()) {
    vocabulary.refuse("an object");
  }
  for (const auto& [token, id] : vocabulary.value().items()) {
    const JsonReader id_reader(id, vocabulary.place(), "/" + token);
    description.vocabulary.emplace_back(
        token, static_cast<std::int32_t>(id_reader.as_int(0, kLargestTokenId)));
  }
  const JsonReader merges = model.at("merges");
  for (std::size_t i = 0; i < merges.size(); ++i) {
    description.merges.push_back(read_merge(merges.at(i)));
  }
  return description;
}

AddedToken read_added_token(const JsonReader& reader) {
  AddedToken token;
  token.content = reader.at("content").as_string();
  token.id = static_cast<std::int32_t>(reader.at("id").as_int(0, kLargestTokenId));
  token.special = flag_of(reader, "special", false);
  token.single_word = flag_of(reader, "single_word", false);
  token.lstrip = flag_of(reader, "lstrip", false);
  token.rstrip = flag_of(reader, "rstrip", false);
  token.normalized = flag_of(reader, "normalized", !token.special);
  return token;
}

}  // namespace

/// Builds a Tokenizer from its file.
struct TokenizerLoader {
  static Tokenizer load(const JsonReader& root) {
    PreTokenizer pre_tokenizer = read_pre_tokenizer(root);
    auto parts = std::make_unique<Tokenizer::Parts>(
        read_model(root.at("model"), pre_tokenizer.is_byte_level));
    parts->is_byte_level = pre_tokenizer.is_byte_level;
    parts->splits = std::move(pre_tokenizer.steps);
    if (is_set(root, "normalizer")) {
      for_each_step(root.at("normalizer"), "normalizers", [&](const JsonReader& step) {
        parts->normalizer.push_back(read_normalizer_step(step));
      });
    }
    add_tokens(root, *parts);
    if (is_set(root, "post_processor")) {
      for_each_step(root.at("post_processor"), "processors",
                    [&](const JsonReader& step) { read_post_processor(step, *parts); });
    }
    make_decoder(root, *parts);
    parts->summary = join_message(
        parts->is_byte_level               ? "byte-level BPE, "
        : parts->model.has_byte_fallback() ? "BPE with byte fallback, "
                                           : "BPE, ",
        std::count_if(parts->kind.begin(), parts->kind.end(), [](char kind) { return kind != 0; }),
        " tokens, ", parts->model.num_merges(), " merges");
    return Tokenizer(std::move(parts));
  }

  static void add_tokens(const JsonReader& root, Tokenizer::Parts& parts) {
    if (!is_set(root, "added_tokens")) {
      return;
    }
    const JsonReader list = root.at("added_tokens");
    TextMap<std::int32_t>& ids = parts.added_ids;
    std::unordered_set<std::int32_t> taken;
    for (std::size_t i = 0; i < list.size(); ++i) {
      AddedToken token = read_added_token(list.at(i));
      if (token.content.empty()) {
        continue;
      }
      const auto in_model = parts.model.token_to_id(token.content);
      COTERIE_REQUIRE(!in_model || *in_model == token.id, list.at(i).place(), ": token \"",
                      token.content, "\" has id ", token.id, " here and ", in_model.value_or(0),
                      " in the vocabulary");
      const std::string* holder = parts.model.id_to_token(token.id);
      COTERIE_REQUIRE(holder == nullptr || *holder == token.content, list.at(i).place(), ": id ",
                      token.id, " of \"", token.content, "\" belongs to another token");
      COTERIE_REQUIRE(ids.emplace(token.content, token.id).second, list.at(i).place(), ": token \"",
                      token.content, "\" is added twice");
      COTERIE_REQUIRE(taken.insert(token.id).second, list.at(i).place(), ": id ", token.id,
                      " is given to two added tokens");
      if (token.normalized) {
        token.content = apply_normalizer(parts.normalizer, token.content);
      }
      (token.normalized ? parts.normalized_finder : parts.original_finder).add(token);
      parts.added_tokens.push_back(std::move(token));
    }
  }

  static void read_post_processor(const JsonReader& reader, Tokenizer::Parts& parts) {
    const std::string type = type_of(reader);
    if (type == "ByteLevel") {
      return;  // changes offsets only
    }
    if (type != "TemplateProcessing") {
      refuse_component(reader, "post-processor", type, "TemplateProcessing, ByteLevel, Sequence");
    }
    const JsonReader single = reader.at("single");
    std::vector<std::int32_t> before;
    std::vector<std::int32_t> after;
    bool is_before = true;
    for (std::size_t i = 0; i < single.size(); ++i) {
      const JsonReader item = single.at(i);
      if (item.has("Sequence")) {
        COTERIE_REQUIRE(is_before, item.place(), ": the text stands twice in the template");
        is_before = false;
        continue;
      }
      const std::string name = item.at("SpecialToken").at("id").as_string();
      const auto ids = reader.at("special_tokens").at(name).at("ids").as_ints(0, kLargestTokenId);
      std::vector<std::int32_t>& side = is_before ? before : after;
      side.insert(side.end(), ids.begin(), ids.end());
    }
    COTERIE_REQUIRE(!is_before, single.place(), ": the text is missing in the template");
    parts.prefix.insert(parts.prefix.begin(), before.begin(), before.end());
    parts.suffix.insert(parts.suffix.end(), after.begin(), after.end());
  }

  static void make_decoder(const JsonReader& root, Tokenizer::Parts& parts) {
    parts.joins_with_spaces = !is_set(root, "decoder");
    if (!parts.joins_with_spaces) {
      for_each_step(root.at("decoder"), "decoders",
                    [&](const JsonReader& step) { parts.decoder.add(step); });
      parts.uses_steps = !parts.decoder.is_byte_level();
    }
    std::int32_t end = parts.model.id_end();
    for (const AddedToken& token : parts.added_tokens) {
      end = std::max(end, token.id + 1);
    }
    for (const auto* specials : {&parts.prefix, &parts.suffix}) {
      for (const std::int32_t id : *specials) {
        COTERIE_REQUIRE(id < end, root.place(), ": /post_processor: special token id ", id,
                        " is not in the vocabulary of ", end);
      }
    }
    parts.decoded.resize(static_cast<std::size_t>(end));
    parts.kind.resize(static_cast<std::size_t>(end), 0);
    const ByteAlphabet alphabet;
    const auto set = [&](std::int32_t id, const std::string& token, char kind) {
      const auto index = static_cast<std::size_t>(id);
      parts.decoded[index] = parts.joins_with_spaces || parts.uses_steps
                                 ? token
                                 : alphabet.to_bytes(token).value_or(token);
      parts.kind[index] = kind;
    };
    for (std::int32_t id = 0; id < parts.model.id_end(); ++id) {
      if (const std::string* token = parts.model.id_to_token(id)) {
        set(id, *token, 1);
      }
    }
    for (const AddedToken& token : parts.added_tokens) {
      set(token.id, token.content, token.special ? 2 : 1);
    }
  }
};

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& source) {
  const Json document = parse_json(json, source);
  return TokenizerLoader::load(JsonReader(document, source));
}

Tokenizer Tokenizer::from_file(const std::filesystem::path& path) {
  return from_json(read_text_file(path), path.string());
}

}  // namespace coterie::models
