// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/lora.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <set>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"
#include "coterie/run/parallel/parallel.hpp"

namespace coterie::training {
namespace {

constexpr const char* kPrefix = "base_model.model.";
constexpr const char* kEnding = ".weight";
constexpr const char* kA = ".lora_A.weight";
constexpr const char* kB = ".lora_B.weight";

/// One matrix of the model, and where its factors are among the parameters.
struct Adapter {
  std::size_t target = 0;  ///< index of the model's parameter
  Piece piece;             ///< the matrix in it
  at::Tensor base;         ///< its values without adapter
  std::size_t a = 0;
  std::size_t b = 0;
};

bool is_attention(const std::string& name) {
  return name.find("attn") != std::string::npos;
}

bool is_adapted(const Parameter& parameter, const Piece& piece, const LoraRecipe& recipe) {
  if (piece.shape.size() != 2 || !piece.name.ends_with(kEnding)) {
    return false;
  }
  return parameter.is_expert ? recipe.experts : recipe.attention && is_attention(piece.name);
}

class LoraModel final : public Model {
 public:
  LoraModel(std::unique_ptr<Model> model, const LoraRecipe& recipe, std::uint64_t seed)
      : model_(std::move(model)),
        recipe_(recipe),
        scale_(recipe.alpha / static_cast<double>(recipe.rank)) {
    std::span<Parameter> inner = model_->parameters();
    for (std::size_t i = 0; i < inner.size(); ++i) {
      bool is_target = false;
      for (const Piece& piece : inner[i].pieces) {
        if (is_adapted(inner[i], piece, recipe)) {
          add(i, piece, seed);
          is_target = true;
        }
      }
      inner[i].value.requires_grad_(is_target);
    }
    COTERIE_REQUIRE(!adapters_.empty(), "lora: the model has no matrix to adapt");
  }

  std::span<Parameter> parameters() override { return parameters_; }
  std::span<Parameter> exported_parameters() override {
    merge();
    return model_->parameters();
  }

  StepResult forward_backward(const StepInput& input) override {
    merge();
    const StepResult result = model_->forward_backward(input);
    const at::NoGradGuard no_grad;
    for (const Adapter& adapter : adapters_) {
      const at::Tensor& whole = model_->parameters()[adapter.target].value.grad();
      const at::Tensor& a = parameters_[adapter.a].value;
      const at::Tensor& b = parameters_[adapter.b].value;
      if (whole.defined()) {
        const at::Tensor g = view_of(adapter.piece, whole).to(a.scalar_type());
        add_gradient(parameters_[adapter.a], at::mm(b.detach().t(), g) * scale_);
        add_gradient(parameters_[adapter.b], at::mm(g, a.detach().t()) * scale_);
      }
    }
    model_->zero_gradients();
    return result;
  }

  void sum_gradients() override {
    std::map<comm::Communicator*, std::vector<at::Tensor>> groups;
    std::vector<comm::Communicator*> order;  // of first use: the same on every rank
    for (Parameter& parameter : parameters_) {
      if (!parameter.value.grad().defined()) {
        parameter.value.mutable_grad() = at::zeros_like(parameter.value);
      }
      if (parameter.replicas != nullptr) {
        if (!groups.contains(parameter.replicas)) {
          order.push_back(parameter.replicas);
        }
        groups[parameter.replicas].push_back(parameter.value.grad().flatten());
      }
    }
    for (comm::Communicator* group : order) {
      at::Tensor flat = at::cat(groups[group]);
      const bool is_fp64 = flat.scalar_type() == at::kDouble;
      parallel::all_reduce(*group,
                           {flat.mutable_data_ptr(), flat.numel(),
                            is_fp64 ? parallel::SumType::kFloat64 : parallel::SumType::kFloat32});
      std::int64_t begin = 0;
      for (at::Tensor& part : groups[group]) {
        part.copy_(flat.narrow(0, begin, part.numel()));
        begin += part.numel();
      }
    }
  }

  void zero_gradients() override {
    model_->zero_gradients();
    for (Parameter& parameter : parameters_) {
      parameter.value.mutable_grad() = at::Tensor();
    }
  }
  void after_step(const StepResult& result) override { model_->after_step(result); }
  LossSum evaluate(std::span<const MicroBatch> micro_batches) override {
    merge();
    return model_->evaluate(micro_batches);
  }
  /// A checkpoint of adapters is no model: no config.json.
  void write_description(const std::filesystem::path& folder) const override {
    write_adapter_config(folder, recipe_, parameters_, "");
  }
  [[nodiscard]] ModelSize size() const override { return model_->size(); }
  [[nodiscard]] std::uint64_t bytes_sent() const override { return model_->bytes_sent(); }
  void write_exported_description(const std::filesystem::path& folder) const override {
    model_->write_description(folder);
  }

 private:
  void add(std::size_t target, const Piece& piece, std::uint64_t seed) {
    const Parameter& inner = model_->parameters()[target];
    if (piece.size != piece.shape) {
      fail(ErrorCode::kUnsupported, "lora: the layout cuts ", piece.name,
           " (model or expert_shard above 1): adapters need whole matrices");
    }
    const std::string module =
        kPrefix + piece.name.substr(0, piece.name.size() - std::string(kEnding).size());
    Adapter adapter{target, piece, view_of(piece, inner.value.detach()).clone(), 0, 0};
    const double width = static_cast<double>(piece.shape[1]);
    adapter.a = add_factor(inner, module + kA, {recipe_.rank, piece.shape[1]},
                           1.0 / std::sqrt(3.0 * width), seed);
    adapter.b = add_factor(inner, module + kB, {piece.shape[0], recipe_.rank}, 0.0, seed);
    adapters_.push_back(std::move(adapter));
  }

  std::size_t add_factor(const Parameter& inner, const std::string& name, at::IntArrayRef shape,
                         double deviation, std::uint64_t seed) {
    const bool is_fp64 = inner.value.scalar_type() == at::kDouble;
    models::TrainableParameter made;
    made.name = name;
    made.value = at::empty(
        shape,
        inner.value.options().dtype(is_fp64 ? at::kDouble : at::kFloat).requires_grad(false));
    made.pieces = {models::whole_piece(name, shape)};
    made.beginning = deviation > 0 ? models::Beginning::kNormal : models::Beginning::kZeros;
    made.deviation = deviation;
    models::begin_parameter(made, seed);
    Parameter parameter;
    parameter.name = name;
    parameter.value = made.value.detach().requires_grad_(true);
    parameter.pieces = made.pieces;
    parameter.replicas = inner.replicas;
    parameter.is_expert = inner.is_expert;
    parameters_.push_back(std::move(parameter));
    return parameters_.size() - 1;
  }

  static void add_gradient(Parameter& parameter, const at::Tensor& gradient) {
    const at::Tensor& old = parameter.value.grad();
    parameter.value.mutable_grad() = old.defined() ? old + gradient : gradient;
  }

  void merge() {
    const at::NoGradGuard no_grad;
    for (const Adapter& adapter : adapters_) {
      const at::Tensor& a = parameters_[adapter.a].value;
      const at::Tensor& b = parameters_[adapter.b].value;
      const at::Tensor sum = adapter.base.to(a.scalar_type()) + at::mm(b, a) * scale_;
      view_of(adapter.piece, model_->parameters()[adapter.target].value.detach()).copy_(sum);
    }
  }

  std::unique_ptr<Model> model_;
  LoraRecipe recipe_;
  double scale_;
  std::vector<Adapter> adapters_;
  std::vector<Parameter> parameters_;
};

}  // namespace

std::unique_ptr<Model> make_lora_model(std::unique_ptr<Model> model, const LoraRecipe& recipe,
                                       std::uint64_t seed) {
  return std::make_unique<LoraModel>(std::move(model), recipe, seed);
}

void write_adapter_config(const std::filesystem::path& folder, const LoraRecipe& recipe,
                          std::span<const Parameter> adapters, const std::string& base) {
  std::set<std::string> modules;  // last part of the names: "q_proj"
  for (const Parameter& adapter : adapters) {
    const std::string& name = adapter.name;
    const std::size_t end = name.find(".lora_");
    modules.insert(name.substr(name.rfind('.', end - 1) + 1, end - name.rfind('.', end - 1) - 1));
  }
  write_json_file(folder / "adapter_config.json", {{"peft_type", "LORA"},
                                                   {"task_type", "CAUSAL_LM"},
                                                   {"base_model_name_or_path", base},
                                                   {"r", recipe.rank},
                                                   {"lora_alpha", recipe.alpha},
                                                   {"lora_dropout", 0.0},
                                                   {"bias", "none"},
                                                   {"fan_in_fan_out", false},
                                                   {"inference_mode", true},
                                                   {"target_modules", modules}});
}

}  // namespace coterie::training
