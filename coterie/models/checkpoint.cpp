// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/checkpoint.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"

namespace coterie::models {
namespace {

namespace fs = std::filesystem;

/// Tensor name -> shard file name, as the index says.
using WeightMap = std::map<std::string, std::string>;

WeightMap read_weight_map(const Json& document, const std::string& index) {
  const JsonReader map = JsonReader(document, index).at("weight_map");
  if (!map.value().is_object()) {
    map.refuse("an object of file names");
  }
  WeightMap weight_map;
  for (const auto& [tensor, value] : map.value().items()) {
    const std::string file = map.at(tensor).as_string();
    COTERIE_REQUIRE(!file.empty() && fs::path(file).filename() == file && file != "..", index,
                    ": tensor \"", tensor, "\": \"", file, "\" is no file name in the same folder");
    weight_map[tensor] = file;
  }
  return weight_map;
}

bool names_only(const WeightMap& weight_map, const std::string& file) {
  return std::all_of(weight_map.begin(), weight_map.end(),
                     [&](const auto& entry) { return entry.second == file; });
}

std::vector<std::string> stray_files(const fs::path& folder, const std::set<std::string>& known) {
  std::vector<std::string> strays;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".safetensors" && !known.contains(name)) {
      strays.push_back(entry.path().string() + ": not named by the index; not read");
    }
  }
  std::sort(strays.begin(), strays.end());
  return strays;
}

}  // namespace

std::string Tensor::place() const {
  return file->path().string() + ": tensor \"" + info->name + "\"";
}

Checkpoint::Checkpoint(const fs::path& model) : path_(model) {
  const fs::path single = model / kSingleFileName;
  const fs::path index = model / kIndexName;
  if (!fs::is_directory(model)) {
    COTERIE_REQUIRE(fs::exists(model), model.string(), ": no such file or folder");
    shards_.push_back(std::make_unique<SafetensorsFile>(model));
  } else if (fs::exists(index)) {
    open_index(index);
    return;
  } else {
    COTERIE_REQUIRE(fs::exists(single), model.string(), ": holds neither ", kSingleFileName,
                    " nor ", kIndexName);
    shards_.push_back(std::make_unique<SafetensorsFile>(single));
  }
  for (const TensorInfo& info : shards_[0]->tensors()) {
    tensors_.push_back({&info, shards_[0].get()});
  }
}

void Checkpoint::open_index(const fs::path& index) {
  const Json document = read_json_file(index);
  const WeightMap weight_map = read_weight_map(document, index.string());
  COTERIE_REQUIRE(
      !fs::exists(path_ / kSingleFileName) || names_only(weight_map, kSingleFileName),
      path_.string(), ": holds both ", kSingleFileName, " and ", kIndexName,
      ", which names other files: which of them is the model? Remove the one that is not");
  std::map<std::string, SafetensorsFile*> shard_named;
  std::set<std::string> file_names;
  for (const auto& [tensor, file] : weight_map) {
    if (file_names.insert(file).second) {
      COTERIE_REQUIRE(fs::exists(path_ / file), index.string(), ": shard ", file,
                      " is missing (it holds tensor \"", tensor, "\" and maybe others)");
      shards_.push_back(std::make_unique<SafetensorsFile>(path_ / file));
      shard_named[file] = shards_.back().get();
    }
  }
  std::uint64_t total = 0;
  for (const auto& [tensor, file] : weight_map) {  // ascending by name
    const TensorInfo* info = shard_named[file]->find(tensor);
    COTERIE_REQUIRE(info != nullptr, (path_ / file).string(), ": tensor \"", tensor,
                    "\" is missing, though ", kIndexName, " says that it is here");
    tensors_.push_back({info, shard_named[file]});
    total += info->num_bytes;
  }
  for (const auto& [file, shard] : shard_named) {
    for (const TensorInfo& info : shard->tensors()) {
      const auto listed = weight_map.find(info.name);
      if (listed == weight_map.end()) {
        remarks_.push_back(Tensor{&info, shard}.place() + ": not named by the index; not read");
      } else if (listed->second != file) {
        remarks_.push_back(Tensor{&info, shard}.place() + ": the index takes it from " +
                           listed->second + "; not read");
      }
    }
  }
  const auto strays = stray_files(path_, file_names);
  remarks_.insert(remarks_.end(), strays.begin(), strays.end());
  const JsonReader reader(document, index.string());
  if (reader.has("metadata") && reader.at("metadata").has("total_size")) {
    const std::int64_t stated = reader.at("metadata").at("total_size").as_int(0);
    if (static_cast<std::uint64_t>(stated) != total) {
      remarks_.push_back(join_message(index.string(), ": total_size says ", stated,
                                      " bytes, the tensors have ", total));
    }
  }
}

const Tensor* Checkpoint::find(std::string_view name) const {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const Tensor& tensor, std::string_view n) { return tensor.name() < n; });
  return found != tensors_.end() && found->name() == name ? &*found : nullptr;
}

std::vector<fs::path> Checkpoint::files() const {
  std::vector<fs::path> files;
  for (const auto& shard : shards_) {
    files.push_back(shard->path());
  }
  return files;
}

}  // namespace coterie::models
