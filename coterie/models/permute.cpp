// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/permute.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <system_error>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"
#include "coterie/models/checkpoint_writer.hpp"
#include "coterie/models/decoder.hpp"
#include "coterie/models/expert_names.hpp"
#include "coterie/models/model_placement.hpp"
#include "coterie/models/new_folder.hpp"

namespace coterie::models {
namespace {

namespace fs = std::filesystem;

/// New order of one layer's experts.
struct ExpertOrder {
  std::vector<std::int32_t> old_of_new;
  std::vector<std::int32_t> new_of_old;
};

ExpertOrder order_of(const placement::LayerPlacement& placement, std::int32_t layer) {
  COTERIE_REQUIRE(placement.has_single_copies(), "layer ", layer, ": the placement has ",
                  placement.num_slots() - placement.num_experts,
                  " replicas; a checkpoint holds each expert once, so permute needs none");
  const auto& devices = placement.experts_of_device;
  for (std::size_t d = 0; d < devices.size(); ++d) {
    COTERIE_REQUIRE(devices[d].size() == devices[0].size(), "layer ", layer, ": device ", d,
                    " has ", devices[d].size(), " experts, device 0 has ", devices[0].size(),
                    "; engines give each device equally many, so permute needs that too");
  }
  ExpertOrder order;
  order.old_of_new = placement.physical_to_logical();
  order.new_of_old.resize(order.old_of_new.size());
  for (std::size_t j = 0; j < order.old_of_new.size(); ++j) {
    order.new_of_old[static_cast<std::size_t>(order.old_of_new[j])] = static_cast<std::int32_t>(j);
  }
  return order;
}

/// Where tokens choose groups of experts first, experts may change places with neighbours of their
/// group, and whole groups with each other.
void check_groups(const ExpertOrder& order, std::int32_t layer, std::int64_t num_groups) {
  const std::size_t size = order.old_of_new.size() / static_cast<std::size_t>(num_groups);
  for (std::size_t j = 0; j < order.old_of_new.size(); ++j) {
    const auto old = static_cast<std::size_t>(order.old_of_new[j]);
    const auto first = static_cast<std::size_t>(order.old_of_new[j / size * size]);
    COTERIE_REQUIRE(old / size == first / size, "layer ", layer, ": the placement puts experts ",
                    first, " and ", old, ", which are of different groups (n_group = ", num_groups,
                    "), into one; the model's routing would change");
  }
}

/// The tensor with its first axis (experts) in the new order.
OutgoingTensor reordered(const Tensor& tensor, const ExpertOrder& order) {
  const auto produce = [tensor, old_of_new = order.old_of_new](const ByteConsumer& consume) {
    const std::span<const std::byte> bytes = tensor.bytes();
    const std::size_t slice = bytes.size() / old_of_new.size();
    for (const std::int32_t old : old_of_new) {
      consume(bytes.subspan(static_cast<std::size_t>(old) * slice, slice));
    }
    tensor.release();
  };
  return {tensor.name(), tensor.type(), tensor.shape(), produce};
}

OutgoingTensor permuted(const Tensor& tensor, const ExpertName& name, const ExpertOrder& order) {
  if (name.expert >= 0) {
    const auto old = static_cast<std::size_t>(name.expert);
    COTERIE_REQUIRE(old < order.new_of_old.size(), tensor.place(), ": expert ", name.expert,
                    " is outside [0, ", order.new_of_old.size(), ")");
    OutgoingTensor moved = unchanged(tensor);
    moved.name = name.with_expert(order.new_of_old[old]);
    return moved;
  }
  const auto E = static_cast<std::int64_t>(order.old_of_new.size());
  const bool is_per_expert = !tensor.shape().empty() && tensor.shape()[0] == E;
  const std::int64_t num_values = tensor.info->num_bytes == 0 ? 0 : [&] {
    std::int64_t product = 1;
    for (const std::int64_t size : tensor.shape()) {
      product *= size;
    }
    return product;
  }();
  COTERIE_REQUIRE(is_per_expert || num_values <= 1, tensor.place(), ": shape ",
                  format_shape(tensor.shape()), " does not begin with the ", E,
                  " experts: its order cannot be told");
  return is_per_expert ? reordered(tensor, order) : unchanged(tensor);
}

bool holds_weights(const fs::path& file) {
  static const std::set<std::string> kWeightFiles = {".bin", ".pt",   ".pth",  ".gguf",   ".h5",
                                                     ".npz", ".ckpt", ".onnx", ".msgpack"};
  return kWeightFiles.contains(file.extension().string());
}

/// Copies config, tokenizer and whatever else belongs to the model.
void copy_other_files(const fs::path& model, const fs::path& out, Progress& progress) {
  std::set<fs::path> entries;
  for (const fs::directory_entry& entry : fs::directory_iterator(model)) {
    entries.insert(entry.path());
  }
  for (const fs::path& path : entries) {
    const std::string name = path.filename().string();
    if (path.extension() == ".safetensors" || name == kIndexName || name == kPermutationName) {
      continue;
    }
    if (!fs::is_regular_file(path)) {
      progress.warn(path.string() + ": not a file; left out");
    } else if (holds_weights(path) || name.ends_with(".bin.index.json")) {
      progress.warn(path.string() + ": weights in the old order; left out");
    } else {
      fs::copy_file(path, out / name);
    }
  }
}

void write_permutation(const fs::path& path, const std::string& fingerprint,
                       std::int32_t num_devices,
                       const std::map<std::int32_t, ExpertOrder>& orders) {
  Json layers = Json::array();
  for (const auto& [layer, order] : orders) {
    layers.push_back(Json{{"layer", layer}, {"old_expert_of_new", order.old_of_new}});
  }
  write_json_file(path, Json{{"format", "coterie.permutation"},
                             {"version", 1},
                             {"source_fingerprint", fingerprint},
                             {"num_devices", num_devices},
                             {"layers", layers}});
}

}  // namespace

void permute_checkpoint(const fs::path& model, const placement::Placement& placement,
                        const fs::path& out, Progress& progress) {
  COTERIE_REQUIRE(fs::is_directory(model), model.string(), ": no model folder");
  const ModelConfig config = read_model_config(model);
  const Checkpoint checkpoint(model);
  for (const std::string& remark : checkpoint.remarks()) {
    progress.warn(remark);
  }
  const std::string fingerprint = model_fingerprint(checkpoint, config);
  const auto placements = layer_placements(placement, config, fingerprint);
  std::map<std::int32_t, ExpertOrder> orders;
  for (std::size_t i = 0; i < placements.size(); ++i) {
    const std::int32_t layer = config.moe_layers[i];
    orders[layer] = order_of(placements[i], layer);
    check_groups(orders[layer], layer, config.router.num_groups);
  }
  std::vector<OutgoingTensor> tensors;
  for (const Tensor& tensor : checkpoint.tensors()) {
    const auto name = parse_expert_name(tensor.name(), config.family);
    const auto order = name ? orders.find(name->layer) : orders.end();
    tensors.push_back(order != orders.end() ? permuted(tensor, *name, order->second)
                                            : unchanged(tensor));
  }
  NewFolder folder(out);
  try {
    copy_other_files(model, folder.path(), progress);
  } catch (const fs::filesystem_error& error) {
    fail(ErrorCode::kIo, out.string(), ": cannot copy ", error.path1().string(), ": ",
         error.code().message());
  }
  write_permutation(folder.path() / kPermutationName, fingerprint, placement.num_devices(), orders);
  write_checkpoint(folder.path(), tensors, kMaxShardBytes, progress);
  folder.commit();
}

}  // namespace coterie::models
