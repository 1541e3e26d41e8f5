// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <map>

#include "cli/inspect.hpp"
#include "coterie/base/error.hpp"
#include "coterie/models/models.hpp"

namespace coterie::cli {
namespace {

struct Weights {
  std::uint64_t num_parameters = 0;
  std::uint64_t num_bytes = 0;
  std::map<std::string, std::uint64_t> tensors_of_type;
};

Weights count_weights(const models::Checkpoint& checkpoint) {
  Weights weights;
  for (const models::Tensor& tensor : checkpoint.tensors()) {
    weights.num_bytes += tensor.info->num_bytes;
    weights.num_parameters += tensor.info->num_bytes * 8 / models::bits_of(tensor.type());
    ++weights.tensors_of_type[std::string(models::name_of(tensor.type()))];
  }
  return weights;
}

std::string join(const auto& items, const char* between = ", ") {
  std::string text;
  for (const auto& item : items) {
    text += (text.empty() ? "" : between) + join_message(item);
  }
  return text;
}

/// The parameters that one token uses: all but the experts that it does not choose.
std::uint64_t active_parameters(const models::ModelConfig& config, std::uint64_t all) {
  const auto expert =
      static_cast<std::uint64_t>(3 * config.hidden_size * config.expert_intermediate_size);
  const auto idle = static_cast<std::uint64_t>(config.num_experts - config.top_k);
  const std::uint64_t unused = expert * idle * config.moe_layers.size();
  return unused < all ? all - unused : 0;
}

void describe_config(const models::ModelConfig& config, std::uint64_t num_parameters,
                     Json& document, std::vector<std::pair<std::string, std::string>>& facts) {
  document["family"] = config.family;
  document["num_layers"] = config.num_layers;
  document["moe_layers"] = config.moe_layers;
  document["num_experts"] = config.num_experts;
  document["top_k"] = config.top_k;
  document["norm_topk_prob"] = config.renormalise;
  document["hidden_size"] = config.hidden_size;
  document["expert_intermediate_size"] = config.expert_intermediate_size;
  document["vocab_size"] = config.vocab_size;
  document["max_positions"] = config.max_positions;
  document["num_active_parameters"] = active_parameters(config, num_parameters);
  facts.emplace_back("family", config.family);
  facts.emplace_back("layers", join_message(config.num_layers, ", of which ",
                                            config.moe_layers.size(), " with experts"));
  facts.emplace_back("experts",
                     join_message(config.num_experts, " a layer, ", config.top_k, " a token",
                                  config.renormalise ? ", renormalised" : ""));
  facts.emplace_back(
      "sizes",
      join_message("hidden ", config.hidden_size, ", expert ", config.expert_intermediate_size,
                   ", vocabulary ", config.vocab_size, ", positions ", config.max_positions));
}

/// What tokenizer the folder has, or why it cannot be used.
void describe_tokenizer(const std::filesystem::path& folder, Json& document,
                        std::vector<std::pair<std::string, std::string>>& facts) {
  const std::filesystem::path file = folder / "tokenizer.json";
  std::string summary = "none (no tokenizer.json)";
  document["tokenizer"] = nullptr;
  if (std::filesystem::exists(file)) {
    try {
      const auto tokenizer = models::Tokenizer::from_file(file);
      summary = tokenizer.summary();
      document["tokenizer"] = {{"summary", summary}, {"vocab_size", tokenizer.vocab_size()}};
    } catch (const Error& error) {
      summary = std::string("unusable: ") + error.what();
      document["tokenizer"] = {{"error", error.what()}};
    }
  }
  facts.emplace_back("tokenizer", summary);
}

}  // namespace

Inspection inspect_model(const std::filesystem::path& path) {
  const models::Checkpoint checkpoint(path);
  const Weights weights = count_weights(checkpoint);
  Inspection found;
  Json& document = found.document;
  document = {{"kind", "model"}, {"path", path.string()}};
  std::vector<std::pair<std::string, std::string>> facts;
  std::string reason;
  try {
    const models::ModelConfig config = models::read_model_config(path);
    describe_config(config, weights.num_parameters, document, facts);
    document["fingerprint"] = models::model_fingerprint(checkpoint, config);
    facts.emplace_back("fingerprint", document["fingerprint"].get<std::string>());
  } catch (const Error& error) {
    reason = error.what();
  }
  document["num_parameters"] = weights.num_parameters;
  document["num_bytes"] = weights.num_bytes;
  document["num_tensors"] = checkpoint.tensors().size();
  document["num_files"] = checkpoint.files().size();
  document["tensors_of_type"] = weights.tensors_of_type;
  std::vector<std::string> types;
  for (const auto& [type, count] : weights.tensors_of_type) {
    types.push_back(type);
  }
  facts.emplace_back("weights", join_message(weights.num_parameters, " parameters, ",
                                             format_bytes(static_cast<double>(weights.num_bytes)),
                                             ", ", join(types), ", ", checkpoint.tensors().size(),
                                             " tensors in ", checkpoint.files().size(), " files"));
  describe_tokenizer(std::filesystem::is_directory(path) ? path : path.parent_path(), document,
                     facts);
  document["remarks"] = checkpoint.remarks();
  for (const std::string& remark : checkpoint.remarks()) {
    facts.emplace_back("remark", remark);
  }
  document["supported"] = reason.empty();
  document["reason"] = reason.empty() ? Json() : Json(reason);
  facts.emplace_back("verdict", reason.empty() ? "supported" : "unsupported: " + reason);
  found.text = list_facts("model " + path.string(), facts);
  return found;
}

}  // namespace coterie::cli
