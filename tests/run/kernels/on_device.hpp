// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "coterie/base/random.hpp"
#include "coterie/run/kernels/bfloat16.hpp"

/// What tests of the GPU kernels share.
namespace coterie::kernels {

inline bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

#define NEEDS_GPU()                                     \
  do {                                                  \
    if (!has_gpu()) {                                   \
      GTEST_SKIP() << "this machine has no NVIDIA GPU"; \
    }                                                   \
  } while (false)

/// Device memory that begins as a copy of host elements.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& host) : size_(host.size()) {
    EXPECT_EQ(cudaMalloc(&data_, size_ * sizeof(T) + 256), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data_); }
  [[nodiscard]] T* data() { return static_cast<T*>(data_); }
  [[nodiscard]] std::vector<T> host() const {
    std::vector<T> copy(size_);
    EXPECT_EQ(cudaMemcpy(copy.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return copy;
  }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

inline std::vector<std::uint16_t> random_bf16(std::size_t count, std::uint64_t seed, double scale) {
  Random random(seed);
  std::vector<std::uint16_t> values(count);
  for (auto& value : values) {
    value = to_bfloat16(static_cast<float>(scale * random.normal()));
  }
  return values;
}

/// Ids without repetition, about a tenth of them absent.
inline std::vector<std::int32_t> random_ids(int num_tokens, int top_k, int num_experts) {
  Random random(5);
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> order(static_cast<std::size_t>(num_experts));
  for (std::size_t e = 0; e < order.size(); ++e) {
    order[e] = static_cast<std::int32_t>(e);
  }
  for (int t = 0; t < num_tokens; ++t) {
    random.shuffle(std::span(order));
    for (int j = 0; j < top_k; ++j) {
      ids.push_back(random.below(10) == 0 ? -1 : order[static_cast<std::size_t>(j)]);
    }
  }
  return ids;
}

}  // namespace coterie::kernels
