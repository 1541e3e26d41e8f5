// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <memory>
#include <string>

#include "cli/commands.hpp"
#include "cli/output_path.hpp"
#include "coterie/models/models.hpp"

namespace coterie::cli {
namespace {

constexpr const char* kFooter =
    "The new checkpoint computes the same function. An engine that gives its devices equally many\n"
    "experts in checkpoint order (vLLM, SGLang, Megatron, transformers) then places them as the\n"
    "file says, without any change to the engine.\n"
    "\n"
    "Examples:\n"
    "  coterie permute --model DIR --placement placement.json --out DIR2\n"
    "  coterie inspect DIR2";

struct PermuteFlags {
  std::filesystem::path model;
  std::filesystem::path placement;
  std::filesystem::path out;
};

void run_permute(const PermuteFlags& flags, Console& console) {
  const placement::Placement placement = placement::read_placement(flags.placement);
  check_output(flags.out, {flags.model});
  models::permute_checkpoint(flags.model, placement, flags.out, console);
  std::size_t num_moved = 0;
  for (const placement::PlacedLayer& layer : placement.layers) {
    const std::vector<std::int32_t> order = layer.placement.physical_to_logical();
    for (std::size_t slot = 0; slot < order.size(); ++slot) {
      num_moved += order[slot] != static_cast<std::int32_t>(slot) ? 1U : 0U;
    }
  }
  console.print("wrote " + flags.out.string() + ": " + std::to_string(num_moved) + " experts of " +
                std::to_string(placement.layers.size()) + " layers have a new number; " +
                models::kPermutationName + " lists them\n");
  console.emit({{"out", flags.out.string()},
                {"num_layers", placement.layers.size()},
                {"num_devices", placement.num_devices()},
                {"num_experts_moved", num_moved}});
}

}  // namespace

void add_permute(CLI::App& app, Console& console) {
  auto flags = std::make_shared<PermuteFlags>();
  CLI::App* command = app.add_subcommand(
      "permute", "write a checkpoint whose expert order carries a placement into any engine");
  command->footer(kFooter);
  command->add_option("--model", flags->model, "model folder (safetensors, config.json)")
      ->required();
  command->add_option("--placement", flags->placement, "placement file")->required();
  command->add_option("--out", flags->out, "new folder for the checkpoint")->required();
  add_shared_flags(*command, console);
  command->callback([flags, &console] { run_permute(*flags, console); });
}

}  // namespace coterie::cli
