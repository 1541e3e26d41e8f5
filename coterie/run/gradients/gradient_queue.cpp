// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gradients/gradient_queue.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "coterie/base/error.hpp"

namespace coterie::gradients {
namespace {

using parallel::Numbers;

std::int64_t bytes_of(const Numbers& numbers) {
  return numbers.count * parallel::size_of(numbers.type);
}

}  // namespace

double GradientPiece::bytes() const {
  double sum = 0;
  for (const Numbers& part : parts_) {
    sum += static_cast<double>(bytes_of(part));
  }
  return sum;
}

void GradientPiece::sum(comm::Communicator& group) {
  if (parts_.empty()) {
    return;
  }
  if (parts_.size() == 1) {
    parallel::all_reduce(group, parts_.front());
    return;
  }
  // One exchange for all: each has its latency.
  packed_.resize(static_cast<std::size_t>(bytes()));
  std::size_t at = 0;
  std::int64_t count = 0;
  for (const Numbers& part : parts_) {
    std::memcpy(packed_.data() + at, part.data, part.bytes().size());
    at += part.bytes().size();
    count += part.count;
  }
  parallel::all_reduce(group, {packed_.data(), count, parts_.front().type});
  at = 0;
  for (const Numbers& part : parts_) {
    std::memcpy(part.data, packed_.data() + at, part.bytes().size());
    at += part.bytes().size();
  }
}

void GradientQueue::add(const Numbers& gradient) {
  COTERIE_REQUIRE(gradient.count >= 0 && (gradient.count == 0 || gradient.data != nullptr),
                  "gradient of ", gradient.count, " elements without memory");
  if (gradient.count > 0) {
    waiting_.push_back(gradient);
    bytes_ += bytes_of(gradient);
  }
}

std::vector<GradientPiece> GradientQueue::take(double bytes) {
  std::vector<GradientPiece> pieces;
  // Half a byte: sizes come from plans, whose sums are rounded.
  auto left = bytes >= static_cast<double>(bytes_)
                  ? bytes_
                  : static_cast<std::int64_t>(std::ceil(std::max(0.0, bytes) - 0.5));
  while (left > 0 && !waiting_.empty()) {
    Numbers& front = waiting_.front();
    const std::int64_t width = parallel::size_of(front.type);
    const std::int64_t count = std::min(front.count, (left + width - 1) / width);
    if (pieces.empty() || pieces.back().parts_.front().type != front.type) {
      pieces.emplace_back();
    }
    pieces.back().parts_.push_back({front.data, count, front.type});
    left -= count * width;
    bytes_ -= count * width;
    front.data = static_cast<std::byte*>(front.data) + count * width;
    front.count -= count;
    if (front.count == 0) {
      waiting_.pop_front();
    }
  }
  return pieces;
}

}  // namespace coterie::gradients
