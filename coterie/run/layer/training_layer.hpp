// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/schedule/schedule.hpp"
#include "coterie/run/exchange/exchange.hpp"
#include "coterie/run/kernels/kernels.hpp"
#include "coterie/run/layer/lanes.hpp"

namespace coterie::layer {

/// What the experts part of a trained layer is and how it runs.
struct TrainingOptions {
  std::string name = "MoE layer";  ///< begins every message, such as "layer 3"
  std::int64_t hidden = 0;         ///< H, width of a token
  std::int64_t intermediate = 0;   ///< I, width inside an expert as this process has it: its shard
  std::int32_t num_experts = 0;    ///< E
  kernels::Activation activation = kernels::Activation::kSwiGlu;
  exchange::ExchangeOptions exchange;
  /// Cuts of a batch, whole blocks of tokens each. The two are independent, and no number changes a
  /// bit of any result.
  std::int64_t forward_chunks = 1;
  std::int64_t backward_chunks = 1;
  /// Keeps neither received rows nor pre-activations: the backward fetches and computes them again,
  /// chunk by chunk, with the routing as it was. The same bits.
  bool recompute = false;
};

/// Throws kBadInput naming the layer and the value if a size does not make sense.
void check_training_options(const TrainingOptions& options);

/// The weights of the experts that one device holds, slot by slot (experts ascending), as views of
/// the caller's memory. P is 2I for SwiGLU (gate rows, then up rows), else I.
struct DeviceExperts {
  std::vector<kernels::ConstMatrixView> up;         ///< [slots] of [P, H]
  std::vector<kernels::ConstMatrixView> down;       ///< [slots] of [H, I]
  std::vector<kernels::ConstMatrixView> up_bias;    ///< [slots] of [1, P], or empty
  std::vector<kernels::ConstMatrixView> down_bias;  ///< [slots] of [1, H], or empty
};

/// Where their gradients go: same shapes, fp32 (fp64 where the rows are). A view without data is
/// not computed.
struct DeviceGradients {
  std::vector<kernels::MatrixView> up;
  std::vector<kernels::MatrixView> down;
  std::vector<kernels::MatrixView> up_bias;
  std::vector<kernels::MatrixView> down_bias;
};

/// What a forward leaves for its backward: lists, received rows, pre-activations. Nothing of the
/// size tokens x experts x H. It may outlive later forwards, so several batches may be under way.
struct TrainingState {
  std::shared_ptr<const exchange::TrainingLists> lists;
  bool keeps_rows = true;                         ///< false: inputs and pre are made again
  exchange::ArrivedRows inputs;                   ///< of all chunks; empty with recompute
  std::vector<exchange::ByteBuffer> pre;          ///< [local devices] [entries, P]
  std::vector<std::vector<std::int32_t>> pre_at;  ///< [local devices][entries] row of pre

  /// Bytes of rows and pre-activations held.
  [[nodiscard]] std::size_t bytes_held() const;
};

/// One batch of one process.
struct TrainingBatch {
  kernels::ConstMatrixView x;        ///< [T, H] fp64, fp32 or bf16; must outlive the backward
  exchange::TokenRouting routing;    ///< ids (and devices); weights are not read
  kernels::ConstMatrixView weights;  ///< [T, k] fp32, or fp64 with fp64 rows
  std::span<const std::int64_t> source_offsets;  ///< as TrainingExchange::make_lists
  bool keep = true;  ///< false: no backward will follow; only the lists are kept
};

struct StepActions;
struct TrainingPart;
struct PartMemory;
struct KeptPart;

/// What somebody else does in the gaps that a plan leaves between a layer's own exchanges, such as
/// summing dense gradients over ranks.
class IdleSlots {
 public:
  virtual ~IdleSlots() = default;
  /// Piece number `piece` (from 0) of the plan's `moe_gradients`, on the thread of the lane between
  /// nodes, while other lanes work. Every rank's layer calls it at the same place between its own
  /// exchanges, so it may make collectives.
  virtual void run_piece(std::int32_t piece) = 0;
};

/// How a layer carries out its phases, beside what a plan says. All may be absent.
struct LayerRun {
  IdleSlots* slots = nullptr;  ///< of backwards
  profiling::TimelineRecorder* recorder = nullptr;
  std::int32_t layer = 0;  ///< its number in recorded timelines
  /// Debugging: what each lane began, in order. The same text on every rank, whatever the routing.
  std::array<std::string, schedule::kNumLanes>* log = nullptr;
};

/// Experts behind an exchange, forward and backward:
///
///     y[t] = sum over the picks (e, w) of t of w * (down_e act(up_e x[t] + b_e) + c_e)
///
/// Weight gradients are one chain of sums over the rows in the order (block of position, source
/// rank, token): docs/design/017. Every rank makes the same collectives whatever the routing. Not
/// thread-safe.
class TrainingLayer {
 public:
  /// Groups and the pool in `execution` must outlive the layer; `movement` null: FSMoE's. Throws
  /// kBadInput naming layer and value.
  TrainingLayer(TrainingOptions options, placement::LayerPlacement placement,
                exchange::RankGroups groups, const kernels::Execution& execution = {},
                std::shared_ptr<exchange::RowMovement> movement = {});
  ~TrainingLayer();

  /// y [T, H] of x's type. `experts` [local devices]. kBadInput names experts that do not fit.
  std::unique_ptr<TrainingState> forward(const TrainingBatch& batch,
                                         std::span<const DeviceExperts> experts,
                                         kernels::MatrixView y,
                                         exchange::RowHooks* hooks = nullptr);

  /// What comes out of a backward; all is overwritten.
  struct Results {
    kernels::MatrixView grad_x;        ///< [T, H] of x's type
    kernels::MatrixView grad_weights;  ///< [T, k] of the weights' type; exact 0 for an id of -1
    std::span<const DeviceGradients> experts;  ///< [local devices]; idle experts get exact zeros
  };
  /// grad_y [T, H] of x's type. The state stays as it is: a second call gives the same.
  void backward(TrainingState& state, kernels::ConstMatrixView x, kernels::ConstMatrixView grad_y,
                std::span<const DeviceExperts> experts, const Results& results,
                exchange::RowHooks* hooks = nullptr);

  /// From now on phases run as planned, in lanes: exchanges in threads of their own, each lane's
  /// steps in the plan's order on every rank. The results have the same bits with every plan and
  /// without. Chunks are the plan's shares, in whole blocks; rows of all chunks are held while a
  /// phase runs. Row hooks need one chunk after the other, so with hooks only the chunk counts
  /// count. Nothing, the default: chunk by chunk. kBadInput if the plan cannot be carried out.
  void set_plan(std::optional<schedule::LayerPlan> plan);
  [[nodiscard]] const std::optional<schedule::LayerPlan>& plan() const { return plan_; }
  void set_run(const LayerRun& run) { run_ = run; }

  [[nodiscard]] const TrainingOptions& options() const { return options_; }
  [[nodiscard]] const exchange::PlacementIndex& index() const { return *index_; }
  [[nodiscard]] std::span<const std::int32_t> local_devices() const {
    return exchange_->local_devices();
  }
  [[nodiscard]] exchange::TrainingExchange& exchange() { return *exchange_; }
  [[nodiscard]] const kernels::Execution& execution() const { return execution_; }

 private:
  struct BackwardDevice;
  struct BackwardRun;
  [[nodiscard]] std::int64_t chunks_of(schedule::Phase phase) const;
  [[nodiscard]] bool runs_in_lanes(const exchange::RowHooks* hooks) const {
    return plan_.has_value() && hooks == nullptr;
  }
  void begin_trips(const exchange::Journey& journey, const kernels::ConstMatrixView& at_home,
                   exchange::ArrivedRows& arrived, std::deque<exchange::ChunkTrip>& trips) const;
  void forward_in_lanes(const TrainingBatch& batch, std::span<const DeviceExperts> experts,
                        const kernels::MatrixView& y, TrainingState& state);
  void backward_by_chunks(const BackwardRun& run, exchange::RowHooks* hooks);
  void backward_in_lanes(const BackwardRun& run);
  void backward_chunk(const BackwardRun& run, std::int32_t chunk, const exchange::ChunkTrip* trip,
                      bool puts_off);
  KeptPart& keep_part();
  void add_kept_gradients(const BackwardRun& run, std::int32_t first, std::int32_t end);
  void carry_out(const schedule::PhasePlan& plan, schedule::Phase phase,
                 const StepActions& actions);
  void check_experts(std::span<const DeviceExperts> experts) const;
  TrainingPart prepare(const exchange::DeviceLists& device, const exchange::ChunkRows& chunk,
                       std::int64_t first_row, std::int64_t end_row, PartMemory& memory) const;
  kernels::MatrixView up(const TrainingPart& part, const kernels::ConstMatrixView& inputs,
                         const DeviceExperts& experts, const kernels::MatrixView& pre);
  void forward_device(std::size_t i, TrainingState& state, const DeviceExperts& experts,
                      const exchange::ChunkRows& chunk);
  void backward_device(const BackwardDevice& task);
  kernels::ConstMatrixView pre_of(const BackwardDevice& task, const TrainingPart& part,
                                  std::span<const std::int32_t> input_of);

  TrainingOptions options_;
  kernels::Execution execution_;
  bool adds_down_bias_;                              // the first shard does
  std::unique_ptr<exchange::PlacementIndex> index_;  // in place: the exchange refers to it
  std::unique_ptr<exchange::TrainingExchange> exchange_;

  std::optional<schedule::LayerPlan> plan_;
  LayerRun run_;
  std::unique_ptr<Lanes> lanes_;                // with a plan
  std::deque<exchange::ChunkTrip> trips_;       // [chunks]
  std::deque<exchange::ChunkTrip> retrips_;     // the same, of rows that a backward fetches again
  std::deque<std::unique_ptr<KeptPart>> kept_;  // memory stays; num_kept_ of them are in use
  std::size_t num_kept_ = 0;
  std::unique_ptr<PartMemory> part_memory_;
  std::vector<std::int32_t> pre_rows_;
  exchange::ArrivedRows gradients_;
  exchange::ArrivedRows inputs_again_;
  exchange::ByteBuffer hidden_;
  exchange::ByteBuffer outputs_;
  exchange::ByteBuffer pre_;
};

}  // namespace coterie::layer
