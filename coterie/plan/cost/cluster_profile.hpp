// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "coterie/base/json.hpp"
#include "coterie/plan/cost/contention.hpp"
#include "coterie/plan/cost/cost_model.hpp"
#include "coterie/plan/cost/fit.hpp"

namespace coterie::cost {

/// One way to communicate (NCCL, copy engine, kernel stores, MPI), as measured on the groups that a
/// layer uses. Sizes are bytes on one device.
struct Engine {
  std::string name;
  CostModel exchange;        ///< all-to-all between nodes, by the bytes one device gives
  CostModel local_exchange;  ///< all-to-all inside a node, by the bytes one device gives
  CostModel all_gather;      ///< inside a node, by the bytes of the gathered output
  CostModel reduce_scatter;  ///< inside a node, by the bytes of the input
  CostModel all_reduce;      ///< of dense gradients between nodes, by the bytes of the tensor
  Contention contention;

  bool operator==(const Engine&) const = default;
};

/// A prediction of something that was measured but not fitted to.
struct ProfileCheck {
  std::string what;
  SelfCheck check;

  bool operator==(const ProfileCheck&) const = default;
};

/// What a cluster's links and products cost: what `coterie measure` writes and `coterie plan` reads
/// (docs/file_formats.md). Decisions, not raw measurements.
struct ClusterProfile {
  std::string name;
  std::string source;  ///< free text: machine, versions, date
  std::int32_t num_nodes = 1;
  std::int32_t devices_per_node = 1;
  CostModel products;   ///< one grouped product of the experts, by floating-point operations
  double input_gradients = 1;   ///< time of a product for gradients of inputs over `products`
  double weight_gradients = 1;  ///< time of a product for gradients of weights over `products`
  CostModel attention;  ///< attention, norms and projections of a block, by the same
  double backward_attention = 2;  ///< time of the attention's backward over its forward
  std::vector<Engine> engines;    ///< at least one; the first is the default
  std::vector<ProfileCheck> checks;

  [[nodiscard]] std::int32_t num_devices() const { return num_nodes * devices_per_node; }
  /// The engine of that name, the first for "". kBadInput lists the names if there is none such.
  [[nodiscard]] const Engine& engine(std::string_view engine_name = "") const;

  bool operator==(const ClusterProfile&) const = default;
};

Json to_json(const ClusterProfile& profile);
/// The same profile gives the same bytes.
std::string format_profile(const ClusterProfile& profile);
/// Writes it atomically. kBadInput if it could not be read back.
void write_profile(const std::filesystem::path& path, const ClusterProfile& profile);

/// Strict: an unknown key, another version, a model that falls or a factor below 1 is refused with
/// file and place (kBadInput).
ClusterProfile read_profile(const std::filesystem::path& path);
ClusterProfile profile_from(const Json& json, const std::string& source);

/// Something that a reader of a profile should know.
struct Finding {
  Verdict verdict = Verdict::kWarn;
  std::string message;  ///< names the model or check

  bool operator==(const Finding&) const = default;
};

/// Judges a well-formed profile: fits and self-checks that are off by more than 10% (warn) or 25%
/// (refuse), models fitted to fewer than four points, R^2 below 0.9. Empty: nothing to say.
std::vector<Finding> verify_profile(const ClusterProfile& profile);

/// Throws kBadInput with the finding if verify_profile would refuse the profile.
void require_usable(const ClusterProfile& profile, const std::string& where);

/// The profile of a cluster of the same machines with another number of nodes (at least 2 where the
/// profile has several). Between nodes, bytes that leave a node grow as (n - 1) / n, so do betas;
/// the ring all-reduce's beta too, and its alpha as n - 1 (hops); the exchange's alpha as log2 n.
/// An extrapolation: measure where it matters.
ClusterProfile with_nodes(const ClusterProfile& profile, std::int32_t num_nodes);

}  // namespace coterie::cost
