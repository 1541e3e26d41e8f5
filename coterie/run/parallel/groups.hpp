// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>

#include "coterie/run/comm/comm.hpp"
#include "coterie/run/parallel/layout.hpp"

namespace coterie::parallel {

/// The groups that this rank is in, as communicators, cut from the world. One thread a rank uses
/// them; groups must be used in an order that all ranks agree on. The world must outlive them.
class Groups {
 public:
  /// Collective over the world. kBadInput if its size is not the layout's.
  Groups(comm::Communicator& world, const Layout& layout);
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;
  ~Groups();

  [[nodiscard]] const Layout& layout() const { return layout_; }
  [[nodiscard]] const Coordinates& coordinates() const { return coordinates_; }

  /// Its ranks are numbered as in Layout::members, ascending.
  [[nodiscard]] comm::Communicator& group(GroupKind kind) const {
    return *groups_[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] comm::Communicator& world() const { return group(GroupKind::kWorld); }
  [[nodiscard]] comm::Communicator& stage() const { return group(GroupKind::kStage); }
  [[nodiscard]] comm::Communicator& data() const { return group(GroupKind::kData); }
  [[nodiscard]] comm::Communicator& model() const { return group(GroupKind::kModel); }
  [[nodiscard]] comm::Communicator& expert() const { return group(GroupKind::kExpert); }
  [[nodiscard]] comm::Communicator& expert_shard() const { return group(GroupKind::kExpertShard); }
  [[nodiscard]] comm::Communicator& expert_data() const { return group(GroupKind::kExpertData); }
  [[nodiscard]] comm::Communicator& expert_holders() const {
    return group(GroupKind::kExpertHolders);
  }
  [[nodiscard]] comm::Communicator& pipeline() const { return group(GroupKind::kPipeline); }
  [[nodiscard]] comm::Communicator& ends() const { return group(GroupKind::kEnds); }

  /// The same place in the stage before and after: groups of two, the earlier stage is rank 0.
  /// Null at the ends.
  [[nodiscard]] comm::Communicator* previous_stage() const { return previous_; }
  [[nodiscard]] comm::Communicator* next_stage() const { return next_; }

  /// What this rank has sent in all groups, each byte once; the world's own included.
  [[nodiscard]] comm::Traffic traffic() const;
  void reset_traffic();

 private:
  Layout layout_;
  Coordinates coordinates_;
  std::array<comm::Communicator*, kNumGroupKinds> groups_{};
  comm::Communicator* previous_ = nullptr;
  comm::Communicator* next_ = nullptr;
  std::vector<std::unique_ptr<comm::Communicator>> owned_;
};

}  // namespace coterie::parallel
