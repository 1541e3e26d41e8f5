// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/gathered_tensors.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <span>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"

namespace coterie::training {
namespace {

constexpr std::int64_t kNoMore = -1;

at::ScalarType scalar_type_of(models::ElementType type) {
  return type == models::ElementType::kF64   ? at::kDouble
         : type == models::ElementType::kF32 ? at::kFloat
                                             : at::kBFloat16;
}

std::int64_t product(const std::vector<std::int64_t>& sizes) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    count *= size;
  }
  return count;
}

bool overlap(const std::vector<std::int64_t>& start_a, const std::vector<std::int64_t>& size_a,
             const std::vector<std::int64_t>& start_b, const std::vector<std::int64_t>& size_b) {
  for (std::size_t d = 0; d < start_a.size(); ++d) {
    if (start_a[d] >= start_b[d] + size_b[d] || start_b[d] >= start_a[d] + size_a[d]) {
      return false;
    }
  }
  return product(size_a) > 0 && product(size_b) > 0;
}

at::Tensor rectangle(at::Tensor whole, const std::vector<std::int64_t>& start,
                     const std::vector<std::int64_t>& size) {
  for (std::size_t d = 0; d < start.size(); ++d) {
    whole = whole.narrow(static_cast<std::int64_t>(d), start[d], size[d]);
  }
  return whole;
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace

models::ElementType element_type_of(at::ScalarType type) {
  COTERIE_CHECK(type == at::kDouble || type == at::kFloat || type == at::kBFloat16, "type ", type);
  return type == at::kDouble  ? models::ElementType::kF64
         : type == at::kFloat ? models::ElementType::kF32
                              : models::ElementType::kBF16;
}

std::vector<std::string> gather_texts(const std::string& mine, comm::Communicator& world) {
  const auto size = static_cast<std::size_t>(world.size());
  const std::uint64_t length = mine.size();
  std::vector<std::uint64_t> lengths(size);
  world.all_gather(std::as_bytes(std::span(&length, 1)), std::as_writable_bytes(std::span(lengths)),
                   comm::Purpose::kControl);
  const std::uint64_t width = *std::ranges::max_element(lengths);
  std::string padded = mine;
  padded.resize(width);
  std::string all(width * size, '\0');
  world.all_gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)),
                   comm::Purpose::kControl);
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < size; ++rank) {
    texts.push_back(all.substr(rank * width, lengths[rank]));
  }
  return texts;
}

GatheredTensors::GatheredTensors(std::vector<HeldPiece> mine, comm::Communicator& world)
    : mine_(std::move(mine)), world_(world) {
  exchange_descriptions();
  check_cover();
}

void GatheredTensors::exchange_descriptions() {
  Json description = Json::array();
  for (const HeldPiece& held : mine_) {
    const models::ElementType type = element_type_of(held.local.scalar_type());
    description.push_back({held.piece.name, models::name_of(type), held.piece.shape,
                           held.piece.start, held.piece.size});
  }
  const auto texts = gather_texts(description.dump(), world_);
  std::map<std::string, Whole> wholes;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const Json pieces = parse_json(texts[rank], "pieces of rank " + std::to_string(rank));
    std::size_t index = 0;
    for (const Json& entry : pieces) {
      const auto name = entry[0].get<std::string>();
      const auto type = models::element_type_named(entry[1].get<std::string>());
      const auto shape = entry[2].get<std::vector<std::int64_t>>();
      Whole& whole = wholes[name];
      if (whole.parts.empty()) {
        whole.name = name;
        whole.type = *type;
        whole.shape = shape;
      }
      COTERIE_CHECK(whole.type == *type && whole.shape == shape, name, ": ranks ",
                    whole.parts.empty() ? 0 : whole.parts[0].rank, " and ", rank,
                    " differ in type or shape");
      whole.parts.push_back({static_cast<int>(rank), entry[3].get<std::vector<std::int64_t>>(),
                             entry[4].get<std::vector<std::int64_t>>(), index++});
    }
  }
  for (auto& [name, whole] : wholes) {
    wholes_.push_back(std::move(whole));
  }
}

void GatheredTensors::check_cover() const {
  for (const Whole& whole : wholes_) {
    std::int64_t covered = 0;
    for (std::size_t i = 0; i < whole.parts.size(); ++i) {
      covered += product(whole.parts[i].size);
      for (std::size_t j = 0; j < i; ++j) {
        COTERIE_CHECK(!overlap(whole.parts[i].start, whole.parts[i].size, whole.parts[j].start,
                               whole.parts[j].size),
                      whole.name, ": ranks ", whole.parts[j].rank, " and ", whole.parts[i].rank,
                      " both hold a part of it");
      }
    }
    COTERIE_CHECK(covered == product(whole.shape), whole.name, ": the ranks hold ", covered,
                  " of its ", product(whole.shape), " elements");
  }
}

/// Collective: the pieces of tensor `index` reach rank 0, which gets the whole; others get nothing.
at::Tensor GatheredTensors::transfer(std::size_t index) {
  const at::NoGradGuard no_grad;
  const Whole& whole = wholes_[index];
  const bool is_root = world_.rank() == 0;
  const auto type = scalar_type_of(whole.type);
  const auto element = static_cast<std::int64_t>(models::bits_of(whole.type) / 8);
  const auto size = static_cast<std::size_t>(world_.size());
  std::vector<at::Tensor> outgoing;
  std::vector<std::int64_t> receive_bytes(size, 0);
  for (const Part& part : whole.parts) {
    if (part.rank == world_.rank()) {
      const HeldPiece& held = mine_[part.index];
      outgoing.push_back(view_of(held.piece, held.local.detach()).contiguous().cpu().flatten());
    }
    if (is_root) {
      receive_bytes[static_cast<std::size_t>(part.rank)] += product(part.size) * element;
    }
  }
  const auto options = at::TensorOptions().dtype(type);
  const at::Tensor sent = outgoing.empty() ? at::empty({0}, options) : at::cat(outgoing);
  std::vector<std::int64_t> send_bytes(size, 0);
  send_bytes[0] = static_cast<std::int64_t>(sent.nbytes());
  const at::Tensor received = at::empty({is_root ? product(whole.shape) : 0}, options);
  world_.all_to_all(bytes_of(sent), send_bytes, bytes_of(received), receive_bytes,
                    comm::Purpose::kControl);
  if (!is_root) {
    return {};
  }
  if (whole.parts.size() == 1) {
    return received.view(whole.shape);
  }
  const at::Tensor result = at::empty(whole.shape, options);
  std::int64_t at = 0;
  for (const Part& part : whole.parts) {
    const std::int64_t count = product(part.size);
    rectangle(result, part.start, part.size).copy_(received.narrow(0, at, count).view(part.size));
    at += count;
  }
  return result;
}

at::Tensor GatheredTensors::fetch(std::size_t index) {
  auto number = static_cast<std::int64_t>(index);
  world_.broadcast(std::as_writable_bytes(std::span(&number, 1)), 0, comm::Purpose::kControl);
  return transfer(index);
}

std::vector<models::OutgoingTensor> GatheredTensors::outgoing() {
  COTERIE_CHECK(world_.rank() == 0, "rank ", world_.rank(), " does not write");
  std::vector<models::OutgoingTensor> tensors;
  for (std::size_t i = 0; i < wholes_.size(); ++i) {
    tensors.push_back({wholes_[i].name, wholes_[i].type, wholes_[i].shape,
                       [this, i](const models::ByteConsumer& consume) {
                         const at::Tensor whole = fetch(i);
                         consume(bytes_of(whole));
                       }});
  }
  return tensors;
}

void GatheredTensors::serve() {
  while (true) {
    std::int64_t index = kNoMore;
    world_.broadcast(std::as_writable_bytes(std::span(&index, 1)), 0, comm::Purpose::kControl);
    if (index == kNoMore) {
      return;
    }
    transfer(static_cast<std::size_t>(index));
  }
}

void GatheredTensors::finish() {
  std::int64_t index = kNoMore;
  world_.broadcast(std::as_writable_bytes(std::span(&index, 1)), 0, comm::Purpose::kControl);
}

}  // namespace coterie::training
