// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gradients/gradient_sender.hpp"

#include <limits>
#include <utility>

#include "coterie/base/error.hpp"

namespace coterie::gradients {

GradientSender::~GradientSender() {
  if (window_.valid()) {
    window_.wait();  // left on an error: the group's abort ends it
  }
}

void GradientSender::set_partition(schedule::GradientPartition partition) {
  COTERIE_REQUIRE(partition.dense_bytes.size() == partition.moe_bytes.size(),
                  "gradient partition: ", partition.dense_bytes.size(), " dense parts and ",
                  partition.moe_bytes.size(), " MoE parts");
  partition_ = std::move(partition);
}

double GradientSender::share_of(const std::vector<double>& bytes, std::int32_t layer) {
  return layer >= 0 && layer < std::ssize(bytes) ? bytes[static_cast<std::size_t>(layer)] : 0;
}

void GradientSender::sum(std::vector<GradientPiece>& pieces, double& counter) {
  for (GradientPiece& piece : pieces) {
    piece.sum(group_);
    counter += piece.bytes();
  }
  pieces.clear();
}

void GradientSender::begin_pass() {
  COTERIE_CHECK(queue_.bytes() == 0 && moe_.empty() && !window_.valid(),
                "a backward pass begins before the one before it ended");
  sent_ = {};
}

void GradientSender::begin_moe(std::int32_t layer) {
  moe_ = queue_.take(share_of(partition_.moe_bytes, layer));
}

void GradientSender::send_moe() {
  sum(moe_, sent_.moe);
}

void GradientSender::begin_dense(std::int32_t layer) {
  COTERIE_CHECK(!window_.valid(), "a dense part begins before the one before it ended");
  dense_ = std::exchange(moe_, {});  // what found no gap
  for (GradientPiece& piece : queue_.take(share_of(partition_.dense_bytes, layer))) {
    dense_.push_back(std::move(piece));
  }
  if (!dense_.empty()) {
    window_ = std::async(std::launch::async, [this] { sum(dense_, sent_.dense); });
  }
}

void GradientSender::end_dense() {
  if (window_.valid()) {
    window_.get();
  }
}

void GradientSender::end_pass() {
  end_dense();
  sum(moe_, sent_.last);
  std::vector<GradientPiece> rest = queue_.take(std::numeric_limits<double>::infinity());
  sum(rest, sent_.last);
}

}  // namespace coterie::gradients
