// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/config_keys.hpp"

#include <array>
#include <string_view>

#include "coterie/base/error.hpp"

namespace coterie::models {
namespace {

/// Keys that do not change the logits of a plain forward pass.
constexpr std::array<std::string_view, 46> kWithoutEffect = {"architectures",
                                                             "attention_dropout",
                                                             "attn_implementation",
                                                             "auto_map",
                                                             "bos_token_id",
                                                             "chunk_size_feed_forward",
                                                             "decoder_start_token_id",
                                                             "dtype",
                                                             "embd_pdrop",
                                                             "eos_token_id",
                                                             "experts_implementation",
                                                             "finetuning_task",
                                                             "hidden_dropout",
                                                             "id2label",
                                                             "initializer_range",
                                                             "is_decoder",
                                                             "label2id",
                                                             "model_type",
                                                             "name_or_path",
                                                             "num_labels",
                                                             "output_attentions",
                                                             "output_hidden_states",
                                                             "output_router_logits",
                                                             "pad_token_id",
                                                             "prefix",
                                                             "pretraining_tp",
                                                             "problem_type",
                                                             "resid_pdrop",
                                                             "return_dict",
                                                             "router_aux_loss_coef",
                                                             "router_jitter_noise",
                                                             "sep_token_id",
                                                             "task_specific_params",
                                                             "tokenizer_class",
                                                             "torch_dtype",
                                                             "torchscript",
                                                             "transformers_version",
                                                             "unk_token_id",
                                                             "use_bfloat16",
                                                             "use_cache",
                                                             "tf_legacy_loss",
                                                             "pruned_heads",
                                                             "temperature",
                                                             "top_p",
                                                             "do_sample",
                                                             "max_length"};

}  // namespace

ConfigKeys::ConfigKeys(const Json& document, std::string file)
    : document_(&document), file_(std::move(file)) {
  if (!document.is_object()) {
    JsonReader(document, file_).refuse("an object");
  }
}

const Json* ConfigKeys::find(std::initializer_list<const char*> spellings) {
  const Json* found = nullptr;
  const char* found_key = nullptr;
  for (const char* key : spellings) {
    const auto member = document_->find(key);
    if (member == document_->end()) {
      continue;
    }
    used_.insert(key);
    if (member->is_null()) {
      continue;
    }
    COTERIE_REQUIRE(found == nullptr || *found == *member, file_, ": ", found_key, " = ",
                    found->dump(), " and ", key, " = ", member->dump(), " contradict each other");
    found = &*member;
    found_key = key;
  }
  return found;
}

std::optional<std::int64_t> ConfigKeys::optional_size(
    std::initializer_list<const char*> spellings) {
  const Json* value = find(spellings);
  if (value == nullptr) {
    return std::nullopt;
  }
  return JsonReader(*value, file_, std::string("/") + *spellings.begin()).as_int(1, 1LL << 40U);
}

std::int64_t ConfigKeys::size(std::initializer_list<const char*> spellings) {
  const auto value = optional_size(spellings);
  COTERIE_REQUIRE(value.has_value(), file_, ": key \"", *spellings.begin(), "\" is missing");
  return *value;
}

std::optional<double> ConfigKeys::optional_positive(const char* key) {
  const Json* value = find({key});
  if (value == nullptr) {
    return std::nullopt;
  }
  const double number = reader(key).as_double();
  if (!(number > 0)) {
    reader(key).refuse("a number above 0");
  }
  return number;
}

double ConfigKeys::positive(const char* key) {
  const auto value = optional_positive(key);
  COTERIE_REQUIRE(value.has_value(), file_, ": key \"", key, "\" is missing");
  return *value;
}

bool ConfigKeys::flag(const char* key, bool absent) {
  return find({key}) == nullptr ? absent : reader(key).as_bool();
}

std::string ConfigKeys::text(const char* key) {
  COTERIE_REQUIRE(find({key}) != nullptr, file_, ": key \"", key, "\" is missing");
  return reader(key).as_string();
}

void ConfigKeys::only(const char* key, const std::string& known) {
  const Json* value = find({key});
  if (value != nullptr && *value != known) {
    unsupported(key, *value, "the only one known here is \"" + known + "\"");
  }
}

void ConfigKeys::only(const char* key, bool known, const std::string& reason) {
  if (flag(key, known) != known) {
    unsupported(key, !known, reason);
  }
}

void ConfigKeys::all_of(const char* key, const std::string& known, std::int64_t most) {
  const Json* list = find({key});
  if (list == nullptr) {
    return;
  }
  COTERIE_REQUIRE(list->is_array() && std::ssize(*list) <= most, file_, ": ", key,
                  " must be a list of at most ", most, " entries");
  for (const Json& value : *list) {
    if (value != known) {
      unsupported(key, value, "the only one known here is \"" + known + "\"");
    }
  }
}

void ConfigKeys::check_rope(const Json& rope, const std::string& key) const {
  if (!rope.is_object()) {
    JsonReader(rope, file_, "/" + key).refuse("an object");
  }
  for (const auto& [name, value] : rope.items()) {
    const bool is_kind = name == "rope_type" || name == "type";
    const bool is_whole = name == "partial_rotary_factor" && value == 1.0;
    if (is_kind ? value != "default" : name != "rope_theta" && !is_whole && !value.is_null()) {
      unsupported(key + "/" + name, value, "only the unscaled rotary embedding is known here");
    }
  }
}

double ConfigKeys::rope_theta() {
  const Json* scaling = find({"rope_scaling"});
  if (scaling != nullptr) {
    check_rope(*scaling, "rope_scaling");
  }
  const Json* parameters = find({"rope_parameters"});
  const auto top = optional_positive("rope_theta");
  if (parameters == nullptr) {
    COTERIE_REQUIRE(top.has_value(), file_,
                    ": neither \"rope_parameters\" nor \"rope_theta\" is there");
    return *top;
  }
  check_rope(*parameters, "rope_parameters");
  const double theta = reader("rope_parameters").at("rope_theta").as_double();
  COTERIE_REQUIRE(!top.has_value() || *top == theta, file_, ": rope_theta = ", *top,
                  " and rope_parameters/rope_theta = ", theta, " contradict each other");
  COTERIE_REQUIRE(theta > 0, file_, ": rope_parameters/rope_theta = ", theta, " must be above 0");
  return theta;
}

void ConfigKeys::finish() const {
  for (const auto& [key, value] : document_->items()) {
    const bool harmless =
        value.is_null() || key.starts_with("_") || used_.contains(key) ||
        std::find(kWithoutEffect.begin(), kWithoutEffect.end(), key) != kWithoutEffect.end();
    if (!harmless) {
      unsupported(key, value, "no decoder here has this switch");
    }
  }
}

void ConfigKeys::unsupported(const std::string& key, const Json& value,
                             const std::string& reason) const {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 80) {
    text = text.substr(0, 77) + "...";
  }
  fail(ErrorCode::kUnsupported, file_, ": ", key, " = ", text, " is not supported: ", reason);
}

}  // namespace coterie::models
