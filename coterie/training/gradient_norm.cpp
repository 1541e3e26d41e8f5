// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/gradient_norm.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "coterie/base/hash.hpp"

namespace coterie::training {
namespace {

constexpr std::int64_t kBlock = 4096;

/// One piece's sum of squares under a key that is the same in every layout.
struct PieceSquares {
  std::uint64_t key = 0;
  double sum = 0;
};

template <typename T>
double block_squares(const T* values, std::int64_t count) {
  std::array<double, 8> lanes{};
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) {
      const auto value = static_cast<double>(values[i + static_cast<std::int64_t>(lane)]);
      lanes[lane] += value * value;
    }
  }
  for (; i < count; ++i) {
    lanes[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  double sum = 0;
  for (const double lane : lanes) {
    sum += lane;
  }
  return sum;
}

template <typename T>
double sum_of_squares(const at::Tensor& tensor) {
  const T* values = tensor.const_data_ptr<T>();
  const std::int64_t count = tensor.numel();
  std::vector<double> blocks(static_cast<std::size_t>((count + kBlock - 1) / kBlock));
  at::parallel_for(0, std::ssize(blocks), 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      blocks[static_cast<std::size_t>(b)] =
          block_squares(values + b * kBlock, std::min(kBlock, count - b * kBlock));
    }
  });
  double sum = 0;
  for (const double block : blocks) {
    sum += block;
  }
  return sum;
}

double sum_of_squares_of(const at::Tensor& gradient) {
  if (!gradient.is_cpu()) {
    return gradient.to(at::kDouble).square().sum().item<double>();
  }
  if (gradient.scalar_type() == at::kDouble) {
    return sum_of_squares<double>(gradient.contiguous());
  }
  return sum_of_squares<float>(gradient.to(at::kFloat).contiguous());
}

std::uint64_t key_of(const Piece& piece) {
  Hash hash;
  hash.add(piece.name);
  for (const std::int64_t start : piece.start) {
    hash.add(static_cast<std::uint64_t>(start));
  }
  return hash.value();
}

/// Every rank's items, in rank order.
std::vector<PieceSquares> gather(const std::vector<PieceSquares>& mine, comm::Communicator& world) {
  const auto size = static_cast<std::size_t>(world.size());
  const std::uint64_t count = mine.size();
  std::vector<std::uint64_t> counts(size);
  world.all_gather(std::as_bytes(std::span(&count, 1)), std::as_writable_bytes(std::span(counts)),
                   comm::Purpose::kControl);
  const std::uint64_t width = *std::ranges::max_element(counts);
  std::vector<PieceSquares> padded = mine;
  padded.resize(width);
  std::vector<PieceSquares> all(width * size);
  world.all_gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)),
                   comm::Purpose::kControl);
  std::vector<PieceSquares> items;
  for (std::size_t rank = 0; rank < size; ++rank) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * width);
    items.insert(items.end(), begin, begin + static_cast<std::ptrdiff_t>(counts[rank]));
  }
  return items;
}

}  // namespace

double global_gradient_norm(std::span<const Parameter> parameters, comm::Communicator& world) {
  const at::NoGradGuard no_grad;
  std::vector<PieceSquares> mine;
  for (const Parameter& parameter : parameters) {
    if (parameter.replica() != 0 || parameter.is_frozen) {
      continue;
    }
    const at::Tensor gradient = parameter.gradient();
    for (const Piece& piece : parameter.pieces) {
      mine.push_back({key_of(piece), sum_of_squares_of(view_of(piece, gradient))});
    }
  }
  std::vector<PieceSquares> all = gather(mine, world);
  std::ranges::stable_sort(all, {}, &PieceSquares::key);
  double sum = 0;
  for (const PieceSquares& piece : all) {
    sum += piece.sum;
  }
  return std::sqrt(sum);
}

bool is_on_one_gpu(std::span<const Parameter> parameters, comm::Communicator& world) {
  return world.size() == 1 && kernels::cuda::is_built() &&
         std::ranges::all_of(parameters, [](const Parameter& parameter) {
           return parameter.value.is_cuda() && parameter.value.scalar_type() != at::kDouble;
         });
}

GpuNorm gpu_gradient_norm(std::span<const Parameter> parameters, double limit) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const Parameter& parameter : parameters) {
    gradients.push_back(parameter.gradient());
  }
  const std::vector<at::Tensor> norms = at::_foreach_norm(gradients, 2, at::kFloat);
  GpuNorm result;
  result.norm = at::linalg_vector_norm(at::stack(norms), 2);
  result.factor = limit > 0 ? (limit / (result.norm + 1e-6)).clamp_max(1.0)
                            : result.norm * 0.0 + 1.0;  // not finite where the norm is not
  result.factor =
      at::where(at::isfinite(result.norm), result.factor, std::numeric_limits<double>::quiet_NaN());
  return result;
}

double clip_factor(double norm, double limit) {
  return limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
}

}  // namespace coterie::training
