// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/machine.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <span>
#include <vector>

#include "coterie/run/device/device.hpp"

namespace coterie::training {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double measure_flops() {
  constexpr std::int64_t kSize = 512;
  constexpr double kSeconds = 0.1;
  const at::NoGradGuard no_grad;
  const at::Tensor a = at::ones({kSize, kSize});
  at::Tensor product = at::matmul(a, a);
  double best = 0;
  for (const double start = now_s(); now_s() - start < kSeconds;) {
    const double before = now_s();
    at::matmul_out(product, a, a);
    best = std::max(best, 2.0 * kSize * kSize * kSize / (now_s() - before));
  }
  return best;
}

/// bf16 products on random numbers (zeros run faster than real data), in groups of about 30 ms.
double measure_gpu_flops(const at::Device& device) {
  constexpr std::int64_t kSize = 8192;
  constexpr int kGroups = 3;
  constexpr int kProducts = 20;
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions().device(device).dtype(at::kBFloat16);
  const at::Tensor a = at::randn({kSize, kSize}, options);
  const at::Tensor b = at::randn({kSize, kSize}, options);
  at::Tensor product = at::mm(a, b);
  std::vector<double> rates;
  for (int group = 0; group < kGroups; ++group) {
    device::synchronize(device);
    const double start = now_s();
    for (int i = 0; i < kProducts; ++i) {
      at::mm_out(product, a, b);
    }
    device::synchronize(device);
    rates.push_back(2.0 * kProducts * kSize * kSize * kSize / (now_s() - start));
  }
  std::ranges::sort(rates);
  return rates[rates.size() / 2];
}

}  // namespace

std::int64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

std::int64_t resident_memory_bytes() {
  std::ifstream in("/proc/self/statm");
  std::int64_t total = 0;
  std::int64_t resident = 0;
  in >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

double peak_flops_of_ranks(double stated, const at::Device& device, comm::Communicator& world) {
  world.barrier();
  const double mine = stated > 0         ? stated
                      : device.is_cuda() ? measure_gpu_flops(device)
                                         : measure_flops();
  std::vector<double> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
                   comm::Purpose::kControl);
  double sum = 0;
  for (const double one : all) {
    sum += one;
  }
  return sum;
}

}  // namespace coterie::training
