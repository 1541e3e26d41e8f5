// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "coterie/run/kernels/kernels_decoder_cuda.hpp"
#include "coterie/run/kernels/numbers.cuh"

namespace coterie::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <typename Value, typename State, int kWidth, bool kMaster>
__global__ void __launch_bounds__(kThreads) adamw_kernel(const AdamWUpdate task) {
  using Values = Numbers<Value, kWidth>;
  using States = Numbers<State, kWidth>;
  using Masters = Numbers<float, kWidth>;
  const float scale = task.scale != nullptr ? *task.scale : 1.0F;
  if (!isfinite(scale)) {
    return;
  }
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads * kWidth;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth;
       i < task.count; i += step) {
    const Values gradient = Values::load(static_cast<const Value*>(task.gradient) + i);
    States average = States::load(static_cast<const State*>(task.average) + i);
    States square = States::load(static_cast<const State*>(task.square) + i);
    Values values{};
    Masters masters{};
    if constexpr (kMaster) {
      masters = Masters::load(task.master + i);
    } else {
      values = Values::load(static_cast<const Value*>(task.values) + i);
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float g = gradient.get(j) * scale;
      const float m = average.get(j) + task.one_minus_beta1 * (g - average.get(j));
      const float v = square.get(j) * task.beta2 + task.one_minus_beta2 * g * g;
      const float old = kMaster ? masters.get(j) : values.get(j);
      const float changed =
          old * task.keep - task.step_size * m / (sqrtf(v) / task.root_correction2 + task.epsilon);
      average.set(j, m);
      square.set(j, v);
      masters.set(j, changed);
      values.set(j, changed);
    }
    average.store(static_cast<State*>(task.average) + i);
    square.store(static_cast<State*>(task.square) + i);
    values.store(static_cast<Value*>(task.values) + i);
    if constexpr (kMaster) {
      masters.store(task.master + i);
    }
  }
}

template <typename Value, typename State, bool kMaster>
void launch(const AdamWUpdate& task, Stream stream) {
  constexpr int kWidth = 4;
  const auto fits = [](const void* pointer, std::size_t size) {
    return is_aligned(pointer, static_cast<std::int64_t>(size) * kWidth);
  };
  const bool wide = task.count % kWidth == 0 && fits(task.values, sizeof(Value)) &&
                    fits(task.gradient, sizeof(Value)) && fits(task.average, sizeof(State)) &&
                    fits(task.square, sizeof(State)) && fits(task.master, sizeof(float));
  const std::int64_t items = divide_up(task.count, wide ? kWidth : 1);
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>(divide_up(items, kThreads), 1 << 16));
  if (wide) {
    adamw_kernel<Value, State, kWidth, kMaster><<<blocks, kThreads, 0, stream>>>(task);
  } else {
    adamw_kernel<Value, State, 1, kMaster><<<blocks, kThreads, 0, stream>>>(task);
  }
  require_launch("adamw_update");
}

}  // namespace

void adamw_update(const AdamWUpdate& task, Stream stream) {
  const char* const what = "adamw_update";
  if (task.count == 0) {
    return;
  }
  require_between(what, "count", task.count, 1, std::int64_t{1} << 40);
  require_pointer(what, "values", task.values);
  require_pointer(what, "gradient", task.gradient);
  require_pointer(what, "average", task.average);
  require_pointer(what, "square", task.square);
  const bool is_bf16 = task.value_type == DType::kBfloat16;
  const bool narrow_state = task.state_type == DType::kBfloat16;
  COTERIE_REQUIRE(is_bf16 || task.value_type == DType::kFloat32, what,
                  ": values must be bf16 or fp32");
  COTERIE_REQUIRE(narrow_state || task.state_type == DType::kFloat32, what,
                  ": states must be bf16 or fp32");
  COTERIE_REQUIRE(is_bf16 || (task.master == nullptr && !narrow_state), what,
                  ": fp32 values have neither a master copy nor bf16 states");
  COTERIE_REQUIRE(task.master == nullptr || !narrow_state, what,
                  ": a master copy goes with fp32 states");
  if (!is_bf16) {
    launch<float, float, false>(task, stream);
  } else if (task.master != nullptr) {
    launch<__nv_bfloat16, float, true>(task, stream);
  } else if (narrow_state) {
    launch<__nv_bfloat16, __nv_bfloat16, false>(task, stream);
  } else {
    launch<__nv_bfloat16, float, false>(task, stream);
  }
}

}  // namespace coterie::kernels::cuda
