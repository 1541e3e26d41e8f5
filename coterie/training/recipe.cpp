// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/recipe.hpp"

#include <limits>

#include "coterie/base/error.hpp"
#include "coterie/training/strict_object.hpp"

namespace coterie::training {
namespace {

constexpr const char* kFormat = "coterie.recipe";
constexpr std::int64_t kMany = std::int64_t{1} << 40U;
constexpr double kLargest = 1e300;

Json sources_to_json(const std::vector<TextSource>& sources) {
  Json list = Json::array();
  for (const TextSource& source : sources) {
    list.push_back({{"name", source.name}, {"files", source.files}, {"share", source.share}});
  }
  return list;
}

std::vector<TextSource> read_sources(const JsonReader& reader) {
  std::vector<TextSource> sources;
  for (std::size_t i = 0; i < reader.size(); ++i) {
    StrictObject object(reader.at(i));
    TextSource source;
    object.read("name", source.name);
    object.read("files", source.files);
    object.read("share", source.share, 0, 1e9);
    object.finish();
    sources.push_back(source);
  }
  return sources;
}

Json to_json(const DataRecipe& data) {
  return {{"tokenizer", data.tokenizer},
          {"separator", data.separator},
          {"order", name_of(data.order)},
          {"sources", sources_to_json(data.sources)},
          {"held_out", sources_to_json(data.held_out)}};
}

DataRecipe read_data(const JsonReader& reader) {
  DataRecipe data;
  StrictObject object(reader);
  object.read("tokenizer", data.tokenizer);
  object.read("separator", data.separator);
  std::size_t order = 0;
  object.read_choice("order", order, {name_of(OrderKind::kShuffled), name_of(OrderKind::kMixture)});
  data.order = static_cast<OrderKind>(order);
  data.sources = read_sources(object.required("sources"));
  if (data.sources.empty()) {
    object.required("sources").refuse("one or more sources");
  }
  if (object.has("held_out")) {
    data.held_out = read_sources(object.required("held_out"));
  }
  object.finish();
  return data;
}

Json to_json(const LayoutRecipe& layout) {
  return {{"data", layout.data},
          {"model", layout.model},
          {"expert", layout.expert},
          {"expert_shard", layout.expert_shard},
          {"pipeline", layout.pipeline}};
}

LayoutRecipe read_layout(const JsonReader& reader) {
  LayoutRecipe layout;
  StrictObject object(reader);
  object.read("data", layout.data, 1, 1 << 20);
  object.read("model", layout.model, 1, 1 << 20);
  object.read("expert", layout.expert, 1, 1 << 20);
  object.read("expert_shard", layout.expert_shard, 1, 1 << 20);
  object.read("pipeline", layout.pipeline, 1, 1 << 20);
  object.finish();
  return layout;
}

void read_head(StrictObject& object, const std::string& source) {
  std::string format = kFormat;
  std::int64_t version = kRecipeVersion;
  object.read("format", format);
  COTERIE_REQUIRE(format == kFormat, source, ": format \"", format, "\" is no recipe (\"", kFormat,
                  "\")");
  object.read("version", version, 0, kMany);
  if (version != kRecipeVersion) {
    fail(ErrorCode::kUnsupported, source, ": version ", version, " of recipes is not known here (",
         kRecipeVersion, " is)");
  }
}

void read_compute(const JsonReader& reader, Recipe& recipe) {
  StrictObject object(reader);
  const std::vector<std::string> types = {"fp32", "fp64", "bf16"};
  std::size_t type = 0;
  object.read_choice("dtype", type, types);
  recipe.dtype = types[type];
  object.read("device", recipe.device);
  COTERIE_REQUIRE(
      recipe.device == "cpu" || recipe.device == "cuda" || recipe.device.starts_with("cuda:"),
      "recipe ", recipe.name, ": compute.device is \"", recipe.device,
      "\"; expected cpu, cuda or cuda:N");
  object.read("recompute", recipe.recompute);
  object.read("reference", recipe.reference);
  object.read("forward_chunks", recipe.forward_chunks, 1, 1 << 16);
  object.read("backward_chunks", recipe.backward_chunks, 1, 1 << 16);
  object.read("peak_gflops", recipe.peak_gflops, 0, kLargest);
  object.finish();
}

void read_batch(const JsonReader& reader, Recipe& recipe) {
  StrictObject object(reader);
  object.read("sequence_length", recipe.sequence_length, 1, 1 << 24);
  object.read("sequences", recipe.batch_sequences, 1, kMany);
  object.read("micro_sequences", recipe.micro_batch_sequences, 1, kMany);
  object.finish();
}

void read_outputs(StrictObject& object, Recipe& recipe) {
  if (object.has("evaluation")) {
    StrictObject evaluation(object.required("evaluation"));
    evaluation.read("every_steps", recipe.evaluate_every, 0, kMany);
    evaluation.read("sequences", recipe.evaluation_sequences, 0, kMany);
    evaluation.finish();
  }
  if (object.has("checkpoint")) {
    StrictObject checkpoint(object.required("checkpoint"));
    checkpoint.read("every_steps", recipe.checkpoint_every, 0, kMany);
    checkpoint.read("keep", recipe.keep_checkpoints, 0, kMany);
    checkpoint.finish();
  }
}

void read_layers(StrictObject& object, Recipe& recipe) {
  object.read("start_from", recipe.start_from);
  if (object.has("tune")) {
    recipe.tune = read_tune_recipe(object.required("tune"));
  }
  if (object.has("gate")) {
    recipe.gate = gates::gate_options_from_json(object.required("gate"));
  }
  if (object.has("order")) {
    recipe.order = gates::order_options_from_json(object.required("order"));
  }
}

}  // namespace

Json to_json(const Recipe& r) {
  return {
      {"format", kFormat},
      {"version", kRecipeVersion},
      {"name", r.name},
      {"about", r.about},
      {"seed", r.seed},
      {"steps", r.num_steps},
      {"model", r.model},
      {"start_from", r.start_from},
      {"tune", to_json(r.tune)},
      {"gate", gates::to_json(r.gate)},
      {"order", gates::to_json(r.order)},
      {"compute",
       {{"dtype", r.dtype},
        {"device", r.device},
        {"recompute", r.recompute},
        {"reference", r.reference},
        {"forward_chunks", r.forward_chunks},
        {"backward_chunks", r.backward_chunks},
        {"peak_gflops", r.peak_gflops}}},
      {"layout", to_json(r.layout)},
      {"data", to_json(r.data)},
      {"batch",
       {{"sequence_length", r.sequence_length},
        {"sequences", r.batch_sequences},
        {"micro_sequences", r.micro_batch_sequences}}},
      {"optimizer", to_json(r.optimizer)},
      {"clip_norm", r.clip_norm},
      {"rate", to_json(r.rate)},
      {"evaluation", {{"every_steps", r.evaluate_every}, {"sequences", r.evaluation_sequences}}},
      {"checkpoint", {{"every_steps", r.checkpoint_every}, {"keep", r.keep_checkpoints}}}};
}

Recipe read_recipe(const Json& document, const std::string& source) {
  Recipe recipe;
  StrictObject object(JsonReader(document, source));
  read_head(object, source);
  object.read("name", recipe.name);
  object.read("about", recipe.about);
  std::int64_t seed = 0;
  object.read("seed", seed, 0, std::numeric_limits<std::int64_t>::max());
  recipe.seed = static_cast<std::uint64_t>(seed);
  object.read("steps", recipe.num_steps, 1, kMany);
  const JsonReader model = object.required("model");
  if (!model.value().is_object()) {
    model.refuse("the keys of a config.json");
  }
  recipe.model = model.value();
  read_layers(object, recipe);
  if (object.has("compute")) {
    read_compute(object.required("compute"), recipe);
  }
  if (object.has("layout")) {
    recipe.layout = read_layout(object.required("layout"));
  }
  recipe.data = read_data(object.required("data"));
  if (object.has("batch")) {
    read_batch(object.required("batch"), recipe);
  }
  if (object.has("optimizer")) {
    recipe.optimizer = read_adamw_options(object.required("optimizer"));
  }
  object.read("clip_norm", recipe.clip_norm, 0, kLargest);
  if (object.has("rate")) {
    recipe.rate = read_rate_schedule(object.required("rate"));
  }
  read_outputs(object, recipe);
  object.finish();
  return recipe;
}

void set_value(Json& recipe, const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  COTERIE_REQUIRE(equals != std::string::npos && equals > 0, "--set ", assignment,
                  ": expected KEY=VALUE");
  const std::string path = assignment.substr(0, equals);
  const std::string text = assignment.substr(equals + 1);
  Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) {
    value = text;
  }
  Json* place = &recipe;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    if (place->is_array()) {
      const auto index = static_cast<std::size_t>(std::atoll(key.c_str()));
      COTERIE_REQUIRE(key.find_first_not_of("0123456789") == std::string::npos && !key.empty() &&
                          index < place->size(),
                      "--set ", assignment, ": \"", key, "\" is no index below ", place->size());
      place = &(*place)[index];
    } else {
      const bool may_be_new = path.starts_with("model.");  // keys of config.json
      COTERIE_REQUIRE(place->is_object() && (place->contains(key) || may_be_new), "--set ",
                      assignment, ": the recipe has no key \"", path.substr(0, end),
                      "\" (--print-config shows all)");
      place = &(*place)[key];
    }
    begin = end + 1;
  }
  *place = value;
}

}  // namespace coterie::training
