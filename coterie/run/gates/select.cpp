// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gates/select.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/run/device/device.hpp"

namespace coterie::gates {
namespace {

/// Above this many, sorting a row is faster than insertion into a list.
constexpr std::int64_t kMostInserted = 32;

template <typename T>
void insert_highest(const T* scores, std::int64_t count, std::int64_t* ids, std::int64_t k) {
  std::int64_t held = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (held == k && !(scores[i] > scores[ids[k - 1]])) {
      continue;
    }
    std::int64_t place = held < k ? held++ : k - 1;
    for (; place > 0 && scores[i] > scores[ids[place - 1]]; --place) {
      ids[place] = ids[place - 1];
    }
    ids[place] = i;
  }
}

template <typename T>
void select_rows(const at::Tensor& scores, at::Tensor& ids, const kernels::Execution& execution) {
  const std::int64_t N = scores.size(1);
  const std::int64_t k = ids.size(1);
  const T* const all = scores.const_data_ptr<T>();
  std::int64_t* const out = ids.mutable_data_ptr<std::int64_t>();
  execution.pool().run_ranges(scores.size(0), 64, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t> order(k > kMostInserted ? static_cast<std::size_t>(N) : 0);
    for (std::int64_t row = begin; row < end; ++row) {
      const T* const values = all + row * N;
      if (k <= kMostInserted) {
        insert_highest(values, N, out + row * k, k);
        continue;
      }
      std::iota(order.begin(), order.end(), std::int64_t{0});
      std::partial_sort(order.begin(), order.begin() + k, order.end(),
                        [&](std::int64_t a, std::int64_t b) {
                          return values[a] != values[b] ? values[a] > values[b] : a < b;
                        });
      std::copy_n(order.begin(), k, out + row * k);
    }
  });
}

bool is_for_gpu_kernel(const at::Tensor& scores, std::int64_t k) {
  constexpr std::int64_t kMostExperts = 1024;
  constexpr std::int64_t kMostPicks = 16;
  return kernels::cuda::is_built() && scores.is_cuda() && scores.scalar_type() == at::kFloat &&
         k >= 1 && k <= kMostPicks && scores.size(1) <= kMostExperts;
}

at::Tensor select_on_gpu(const at::Tensor& scores, std::int64_t k) {
  const at::Tensor values = scores.detach().contiguous();
  const at::Tensor ids = at::empty({values.size(0), k}, values.options().dtype(at::kInt));
  const at::Tensor weights = at::empty(ids.sizes(), values.options());
  kernels::cuda::TopkGate task;
  task.logits = values.const_data_ptr<float>();
  task.num_tokens = values.size(0);
  task.logits_stride = values.size(1);
  task.num_experts = static_cast<int>(values.size(1));
  task.top_k = static_cast<int>(k);
  task.ids = ids.mutable_data_ptr<std::int32_t>();
  task.weights = weights.mutable_data_ptr<float>();
  kernels::cuda::topk_gate(task, device::current_stream(values.device()));
  return ids.to(at::kLong);
}

void check_scores(const at::Tensor& scores, std::int64_t k) {
  COTERIE_CHECK(scores.dim() == 2 && k >= 0 && k <= scores.size(1), "k is ", k, ", scores are ",
                scores.sizes());
  COTERIE_AUDIT(!scores.isnan().any().item<bool>(), "scores hold NaN");
}

}  // namespace

at::Tensor select_top_k_reference(const at::Tensor& scores, std::int64_t k) {
  check_scores(scores, k);
  const at::Tensor order = std::get<1>(
      at::sort(scores.detach(), /*stable=*/std::optional<bool>(true), 1, /*descending=*/true));
  return order.narrow(1, 0, k).contiguous();
}

at::Tensor select_top_k(const at::Tensor& scores, std::int64_t k,
                        const kernels::Execution& execution) {
  if (!scores.is_cpu()) {
    return is_for_gpu_kernel(scores, k) ? select_on_gpu(scores, k)
                                        : select_top_k_reference(scores, k);
  }
  check_scores(scores, k);
  const at::Tensor values = scores.detach().contiguous();
  at::Tensor ids = at::empty({scores.size(0), k}, at::kLong);
  if (k == 0) {
    return ids;
  }
  if (values.scalar_type() == at::kDouble) {
    select_rows<double>(values, ids, execution);
  } else {
    COTERIE_CHECK(values.scalar_type() == at::kFloat, "scores hold ", values.scalar_type());
    select_rows<float>(values, ids, execution);
  }
  return ids;
}

}  // namespace coterie::gates
