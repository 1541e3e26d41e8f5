// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/nn/nn.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <map>
#include <mutex>

#include "coterie/base/error.hpp"
#include "python/bindings/bindings.hpp"

/// The experts of a layer as two operators of PyTorch:
///
///     coterie::experts          (rows, ids, weights, up, down, layer, keep) -> (y, state)
///     coterie::experts_backward (grad_y, rows, ids, weights, up, down, state, layer)
///                               -> (grad_rows, grad_weights, grad_up, grad_down)
///
/// `layer` names a RoutedExperts of this process. `state` is a tensor of one byte whose storage
/// owns what the forward leaves for the backward, so it lives exactly as long as autograd keeps it.
/// Where somebody has copied it (offloading of saved tensors), the backward runs the forward again.
namespace coterie::python {
namespace {

using State = std::shared_ptr<layer::TrainingState>;

/// One process's rank of a layer, with what it needs alive.
struct Entry {
  std::shared_ptr<comm::Communicator> group;
  std::unique_ptr<nn::RoutedExperts> experts;
};

class Registry {
 public:
  static Registry& instance() {
    static auto* registry = new Registry();
    return *registry;
  }
  void add(const std::string& name, std::shared_ptr<Entry> entry) {
    const std::lock_guard lock(mutex_);
    entries_[name] = std::move(entry);
  }
  void remove(const std::string& name) {
    const std::lock_guard lock(mutex_);
    entries_.erase(name);
  }
  std::shared_ptr<Entry> at(std::string_view name) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(name);
    COTERIE_REQUIRE(found != entries_.end(), "no layer \"", name, "\" in this process");
    return found->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>, std::less<>> entries_;
};

/// As many threads as torch has at the first use; the pool is kept to the end of the process.
kernels::Threads& pool() {
  static auto* threads = new kernels::Threads(std::max(1, at::get_num_threads()));
  return *threads;
}

void delete_state(void* context) {
  delete static_cast<State*>(context);
}

at::Tensor tensor_of(State state) {
  auto* owned = new State(std::move(state));
  c10::DataPtr data(owned, owned, &delete_state, c10::Device(c10::kCPU));
  c10::Storage storage(c10::Storage::use_byte_size_t(), 1, std::move(data), nullptr, false);
  at::Tensor tensor = at::empty({0}, at::kByte);
  tensor.set_(std::move(storage), 0, {1}, {1});
  return tensor;
}

/// Null where the tensor is none of ours.
State state_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) {
    return nullptr;
  }
  const c10::DataPtr& data = tensor.storage().data_ptr();
  return data.get_deleter() == &delete_state ? *static_cast<State*>(data.get_context()) : nullptr;
}

std::tuple<at::Tensor, at::Tensor> experts_cpu(const at::Tensor& rows, const at::Tensor& ids,
                                               const at::Tensor& weights, const at::Tensor& up,
                                               const at::Tensor& down, c10::string_view layer,
                                               bool keep) {
  const auto entry = Registry::instance().at(layer);
  auto result = entry->experts->forward({rows, ids, weights}, {up, down}, keep);
  return {result.y, keep ? tensor_of(std::move(result.state))
                         : at::zeros({1}, rows.options().dtype(at::kByte))};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> experts_backward_cpu(
    const at::Tensor& grad_y, const at::Tensor& rows, const at::Tensor& ids,
    const at::Tensor& weights, const at::Tensor& up, const at::Tensor& down,
    const at::Tensor& state, c10::string_view layer) {
  const auto entry = Registry::instance().at(layer);
  State kept = state_of(state);
  if (kept == nullptr) {
    kept = entry->experts->forward({rows, ids, weights}, {up, down}, true).state;
  }
  auto gradients = entry->experts->backward(*kept, {rows, ids, weights}, grad_y, {up, down});
  return {gradients.rows, gradients.weights, gradients.up, gradients.down};
}

at::ScalarType type_named(const std::string& name) {
  if (name == "float32") {
    return at::kFloat;
  }
  if (name == "float64") {
    return at::kDouble;
  }
  if (name == "bfloat16") {
    return at::kBFloat16;
  }
  fail(ErrorCode::kUnsupported, "dtype ", name,
       ": Coterie's kernels know float64, float32 and "
       "bfloat16");
}

struct LayerRequest {
  std::string name;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int32_t num_experts = 0;
  std::string kind;
  std::string dtype;
  std::string group;  ///< of torch.distributed; empty: this process alone
  std::vector<std::vector<std::int32_t>> experts_of_device;
  std::int64_t chunks = 1;
  bool recompute = false;
  double timeout_s = 600;
};

nn::ExpertKind kind_named(const std::string& name) {
  for (const auto kind :
       {nn::ExpertKind::kSwiGlu, nn::ExpertKind::kGelu, nn::ExpertKind::kGeluTanh}) {
    if (name == nn::name_of(kind)) {
      return kind;
    }
  }
  fail(ErrorCode::kBadInput, "expert kind \"", name, "\": there are swiglu, gelu, gelu_tanh");
}

std::vector<std::int32_t> make_layer(const LayerRequest& request) {
  auto entry = std::make_shared<Entry>();
  nn::MoELayerOptions options;
  options.name = request.name;
  options.hidden = request.hidden;
  options.intermediate = request.intermediate;
  options.num_experts = request.num_experts;
  options.expert_kind = kind_named(request.kind);
  options.type = type_named(request.dtype);
  options.forward_chunks = options.backward_chunks = request.chunks;
  options.recompute = request.recompute;
  options.execution.threads = &pool();
  if (!request.experts_of_device.empty()) {
    placement::LayerPlacement placed;
    placed.num_experts = request.num_experts;
    placed.experts_of_device = request.experts_of_device;
    options.placement = std::move(placed);
  }
  if (!request.group.empty()) {
    entry->group = comm::communicator_of_group(
        request.group,
        std::chrono::milliseconds(static_cast<std::int64_t>(1e3 * request.timeout_s)));
    options.expert_group = entry->group.get();
  }
  entry->experts = std::make_unique<nn::RoutedExperts>(std::move(options));
  const std::vector<std::int32_t> held = entry->experts->expert_ids();
  Registry::instance().add(request.name, std::move(entry));
  return held;
}

Json statistics_of(const std::string& name) {
  const auto entry = Registry::instance().at(name);
  const nn::RoutedExperts& experts = *entry->experts;
  const auto tokens = experts.num_tokens();
  return {{"num_tokens", tokens},
          {"num_replicas", experts.num_replicas()},
          {"replicas",
           tokens == 0 ? 0.0
                       : static_cast<double>(experts.num_replicas()) / static_cast<double>(tokens)},
          {"bytes_metadata", experts.bytes_sent(comm::Purpose::kMetadata)},
          {"bytes_dispatch", experts.bytes_sent(comm::Purpose::kDispatch)},
          {"bytes_combine", experts.bytes_sent(comm::Purpose::kCombine)}};
}

}  // namespace

TORCH_LIBRARY(coterie, library) {
  library.def(
      "experts(Tensor rows, Tensor ids, Tensor weights, Tensor up, Tensor down, str layer, "
      "bool keep) -> (Tensor, Tensor)");
  library.def(
      "experts_backward(Tensor grad_y, Tensor rows, Tensor ids, Tensor weights, Tensor up, "
      "Tensor down, Tensor state, str layer) -> (Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(coterie, CPU, library) {
  library.impl("experts", &experts_cpu);
  library.impl("experts_backward", &experts_backward_cpu);
}

void bind_nn(py::module_& module) {
  module.def("make_layer",
             [](const std::string& name, std::int64_t hidden, std::int64_t intermediate,
                std::int32_t num_experts, const std::string& kind, const std::string& dtype,
                const std::string& group, std::vector<std::vector<std::int32_t>> experts_of_device,
                std::int64_t chunks, bool recompute, double timeout_s) {
               return make_layer({name, hidden, intermediate, num_experts, kind, dtype, group,
                                  std::move(experts_of_device), chunks, recompute, timeout_s});
             });
  module.def("remove_layer", [](const std::string& name) { Registry::instance().remove(name); });
  module.def("layer_statistics",
             [](const std::string& name) { return to_python(statistics_of(name)); });
}

}  // namespace coterie::python
