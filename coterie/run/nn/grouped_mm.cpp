// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/nn/grouped_mm.hpp"

#include <ATen/ATen.h>

#include <vector>

#include "coterie/base/error.hpp"

namespace coterie::nn {

bool is_torch_grouped_mm(const at::Tensor& a, const at::Tensor& w) {
  return a.scalar_type() == at::kBFloat16 && a.size(1) % 8 == 0 && w.size(1) % 8 == 0 &&
         a.is_contiguous() && w.is_contiguous() && a.size(0) > 0;
}

at::Tensor grouped_mm(const at::Tensor& a, const at::Tensor& w, const at::Tensor& offsets) {
  COTERIE_REQUIRE(a.dim() == 2 && w.dim() == 3 && a.size(1) == w.size(2),
                  "grouped_mm: a is [R, K], w [E, N, K]; K is ", a.size(-1), " and ", w.size(-1));
  COTERIE_REQUIRE(offsets.dim() == 1 && offsets.size(0) == w.size(0), "grouped_mm: offsets has ",
                  offsets.numel(), " elements, w has ", w.size(0), " experts");
  if (is_torch_grouped_mm(a, w)) {
    return at::_grouped_mm(a, w.transpose(1, 2), offsets);
  }
  const at::Tensor ends = offsets.to(at::kCPU, at::kLong);
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (std::int64_t e = 0; e < w.size(0); ++e) {
    const std::int64_t end = ends[e].item<std::int64_t>();
    COTERIE_REQUIRE(end >= begin && end <= a.size(0), "grouped_mm: offsets[", e, "] is ", end,
                    ", outside [", begin, ", ", a.size(0), "]");
    parts.push_back(at::mm(a.slice(0, begin, end), w[e].t()));
    begin = end;
  }
  COTERIE_REQUIRE(begin == a.size(0), "grouped_mm: the last offset is ", begin, ", a has ",
                  a.size(0), " rows");
  return at::cat(parts, 0);
}

}  // namespace coterie::nn
