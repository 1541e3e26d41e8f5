// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/nn/copy_sums.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

namespace coterie::nn {

void sum_copies(comm::Communicator& group, const placement::LayerPlacement& placement,
                at::Tensor& sums) {
  const at::NoGradGuard no_grad;
  const auto& mine = placement.experts_of_device[static_cast<std::size_t>(group.rank())];
  const std::int64_t expert_bytes =
      sums.size(0) == 0 ? 0 : sums.numel() / sums.size(0) * sums.element_size();
  std::vector<std::vector<std::int32_t>> common(placement.experts_of_device.size());
  std::vector<std::int64_t> bytes;
  std::vector<std::byte> out;
  const auto* data = static_cast<const std::byte*>(sums.const_data_ptr());
  const auto place_of = [&](std::int32_t expert) {
    return std::lower_bound(mine.begin(), mine.end(), expert) - mine.begin();
  };
  for (std::size_t device = 0; device < common.size(); ++device) {
    if (device != static_cast<std::size_t>(group.rank())) {
      const auto& theirs = placement.experts_of_device[device];
      std::set_intersection(mine.begin(), mine.end(), theirs.begin(), theirs.end(),
                            std::back_inserter(common[device]));
    }
    for (const std::int32_t expert : common[device]) {
      const auto* first = data + place_of(expert) * expert_bytes;
      out.insert(out.end(), first, first + expert_bytes);
    }
    bytes.push_back(std::ssize(common[device]) * expert_bytes);
  }
  std::vector<std::byte> in(out.size());
  group.all_to_all(out, bytes, in, bytes, comm::Purpose::kGradient);

  const at::Tensor own = sums.clone();
  std::vector<bool> has_sum(mine.size(), false);
  const auto add = [&](std::int64_t place, const at::Tensor& term) {
    if (has_sum[static_cast<std::size_t>(place)]) {
      sums[place].add_(term);
    } else {
      sums[place].copy_(term);
    }
    has_sum[static_cast<std::size_t>(place)] = true;
  };
  std::byte* next = in.data();
  for (std::size_t device = 0; device < common.size(); ++device) {
    if (device == static_cast<std::size_t>(group.rank())) {
      for (std::int64_t place = 0; place < std::ssize(mine); ++place) {
        add(place, own[place]);
      }
    }
    for (const std::int32_t expert : common[device]) {
      const std::int64_t place = place_of(expert);
      add(place, at::from_blob(next, own[place].sizes(), own.options()));
      next += expert_bytes;
    }
  }
}

}  // namespace coterie::nn
