// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <vector>

#include "coterie/base/json_forward.hpp"
#include "coterie/training/parameter.hpp"

namespace coterie {
class JsonReader;
}

namespace coterie::training {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  /// Dense parameters keep only 1/n of their state on each of their n replicas (ZeRO-1,
  /// arXiv:1910.02054, section 5.1).
  bool shard_state = true;
  /// bf16 parameters have fp32 master weights and fp32 averages. Without: none, and averages in
  /// bf16, as torch.optim.AdamW keeps them for bf16 parameters; 8 bytes an element less, and
  /// changes below a bf16's rounding are lost.
  bool master_weights = true;
  /// Tensor by tensor with ATen's operators, as torch.optim.AdamW does without foreach and fused.
  bool reference = false;

  bool operator==(const AdamWOptions&) const = default;
};

Json to_json(const AdamWOptions& options);
AdamWOptions read_adamw_options(const JsonReader& reader);

/// What the optimizer keeps of one parameter: the rows [first_row, first_row + num_rows) of its
/// first dimension; all of them unless the state is sharded. fp32, or fp64 for fp64 parameters.
struct AdamWState {
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  bool is_sharded = false;  ///< the other replicas keep the other rows
  at::Tensor average;       ///< of gradients (exp_avg)
  at::Tensor square;        ///< of squared gradients (exp_avg_sq)
  at::Tensor master;        ///< fp32 copy of bf16 values; undefined for others
};

/// AdamW (arXiv:1711.05101, algorithm 2, decoupled decay) with torch.optim.AdamW's arithmetic. With
/// g = gradient * scale, t the number of steps so far, this one included:
///   p <- p - rate * weight_decay * p        (written p (1 - rate * weight_decay))
///   m <- m + (1 - beta1) (g - m)
///   v <- beta2 v + (1 - beta2) g g
///   p <- p - rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
/// Each element's bits depend on its own history alone, so they are the same for any sharding and
/// any number of threads. The parameters must outlive the optimizer. Not thread-safe; with sharded
/// state all replicas must step together.
class AdamW {
 public:
  AdamW(std::span<Parameter> parameters, const AdamWOptions& options);

  /// One step with the parameters' gradients, which are left as they are.
  void step(double rate, double gradient_scale);
  /// The same with the scale on the parameters' GPU (fp32 scalar), so that nothing waits for it. A
  /// scale that is not finite leaves everything as it is. kInternal for parameters that are not all
  /// on a GPU.
  void step(double rate, const at::Tensor& gradient_scale);

  [[nodiscard]] std::int64_t num_steps() const { return num_steps_; }
  void set_num_steps(std::int64_t num_steps) { num_steps_ = num_steps; }
  /// One a parameter, in their order. Writing them restores a state.
  [[nodiscard]] std::span<AdamWState> states() { return states_; }
  [[nodiscard]] std::span<const AdamWState> states() const { return states_; }
  [[nodiscard]] std::span<Parameter> parameters() { return parameters_; }
  [[nodiscard]] const AdamWOptions& options() const { return options_; }
  /// Copies the master weights into the parameters (after they were read).
  void values_from_masters();
  /// Copies the parameters into the master weights.
  void masters_from_values();
  /// Bytes of all states of this rank.
  [[nodiscard]] std::int64_t num_bytes() const;

 private:
  void gather_rows();
  void update_on_gpu(std::size_t index, double rate, const at::Tensor& scale);

  std::span<Parameter> parameters_;
  AdamWOptions options_;
  std::vector<AdamWState> states_;
  std::int64_t num_steps_ = 0;
};

/// The rows of a state of `num_rows` rows that replica `rank` of `size` keeps: [first, second).
std::pair<std::int64_t, std::int64_t> rows_of_replica(std::int64_t num_rows, int rank, int size);

}  // namespace coterie::training
