// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gates/noise.hpp"

#include <ATen/ATen.h>

#include "coterie/base/random.hpp"

namespace coterie::gates {
namespace {

template <typename Draw>
at::Tensor draw_rows(const TokenBatch& batch, std::int64_t columns, std::uint64_t stream,
                     const Draw& draw) {
  const std::uint64_t step_key = Random(batch.seed, batch.step).next();
  const std::uint64_t key = Random(step_key, stream).next();
  const std::int64_t T = batch.num_tokens();
  const at::Tensor ids = batch.token_ids.defined() ? batch.token_ids.to(at::kCPU).contiguous()
                                                   : at::arange(T, at::kLong);
  const std::int64_t* const id = ids.const_data_ptr<std::int64_t>();
  at::Tensor noise = at::empty({T, columns}, at::kDouble);
  double* const out = noise.mutable_data_ptr<double>();
  for (std::int64_t t = 0; t < T; ++t) {
    Random random(key, static_cast<std::uint64_t>(id[t]));
    for (std::int64_t i = 0; i < columns; ++i) {
      out[t * columns + i] = draw(random);
    }
  }
  return noise;
}

}  // namespace

at::Tensor normal_noise(const TokenBatch& batch, std::int64_t columns, std::uint64_t stream) {
  return draw_rows(batch, columns, stream, [](Random& random) { return random.normal(); });
}

at::Tensor uniform_noise(const TokenBatch& batch, std::int64_t columns, std::uint64_t stream) {
  return draw_rows(batch, columns, stream, [](Random& random) { return random.uniform(); });
}

}  // namespace coterie::gates
