// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/trainable_parameter.hpp"

#include <ATen/Parallel.h>

#include <optional>
#include <string_view>

#include "coterie/base/error.hpp"
#include "coterie/base/hash.hpp"
#include "coterie/base/random.hpp"

namespace coterie::models {
namespace {

/// Deviations below this make zeros, without drawing: for weights that are given afterwards.
constexpr double kNothing = 1e-20;

/// Index in the whole tensor of element `i` of a piece, both row-major.
std::int64_t whole_index(const ParameterPiece& piece, std::int64_t i) {
  std::int64_t index = 0;
  std::int64_t stride = 1;
  for (std::size_t d = piece.shape.size(); d-- > 0;) {
    index += (piece.start[d] + i % piece.size[d]) * stride;
    i /= piece.size[d];
    stride *= piece.shape[d];
  }
  return index;
}

at::Tensor drawn(const ParameterPiece& piece, std::uint64_t seed, double deviation) {
  at::Tensor values = at::empty(piece.size, at::kDouble);
  double* const out = values.mutable_data_ptr<double>();
  const std::uint64_t tensor_seed = seed ^ Hash().add(piece.name).value();
  constexpr std::int64_t kGrain = 4096;
  at::parallel_for(0, values.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      Random random(tensor_seed, static_cast<std::uint64_t>(whole_index(piece, i)));
      out[i] = deviation * random.normal();
    }
  });
  return values;
}

at::ScalarType scalar_type_of(const Tensor& tensor) {
  switch (tensor.type()) {
    case ElementType::kF64: return at::kDouble;
    case ElementType::kF32: return at::kFloat;
    case ElementType::kBF16: return at::kBFloat16;
    case ElementType::kF16: return at::kHalf;
    default:
      fail(ErrorCode::kUnsupported, tensor.place(), ": type ", name_of(tensor.type()),
           " cannot be trained");
  }
}

/// The rectangle of a checkpoint tensor, where it lies in the file.
at::Tensor rectangle(const Tensor& tensor, const std::vector<std::int64_t>& start,
                     const std::vector<std::int64_t>& size) {
  void* data = const_cast<std::byte*>(tensor.bytes().data());  // mapped read-only, never written
  at::Tensor view = at::from_blob(data, tensor.shape(), scalar_type_of(tensor));
  for (std::size_t d = 0; d < start.size(); ++d) {
    view = view.narrow(static_cast<std::int64_t>(d), start[d], size[d]);
  }
  return view;
}

/// Where a per-expert tensor lies in a fused one.
struct FusedPlace {
  std::string name;
  std::int64_t expert = 0;
  std::int64_t first_row = 0;
  std::int64_t num_rows_factor = 1;  ///< rows of the fused tensor a row of the single one
};

void replace(std::string& text, const std::string& from, const std::string& to) {
  if (const auto at = text.find(from); at != std::string::npos) {
    text.replace(at, from.size(), to);
  }
}

/// "model.layers.0.mlp.experts.3.up_proj.weight" to rows of
/// "model.layers.0.mlp.experts.gate_up_proj"
std::optional<FusedPlace> fused_place(const ParameterPiece& piece) {
  constexpr std::string_view kExperts = ".experts.";
  const auto at = piece.name.find(kExperts);
  if (at == std::string::npos) {
    return std::nullopt;
  }
  const auto number = at + kExperts.size();
  const auto dot = piece.name.find('.', number);
  if (dot == std::string::npos) {
    return std::nullopt;
  }
  const std::string matrix = piece.name.substr(dot + 1);
  FusedPlace place;
  place.expert = std::stoll(piece.name.substr(number, dot - number));
  std::string base = piece.name.substr(0, at) + ".experts.";
  replace(base, ".block_sparse_moe.", ".mlp.");
  const bool is_gate = matrix == "w1.weight" || matrix == "gate_proj.weight";
  const bool is_up = matrix == "w3.weight" || matrix == "up_proj.weight";
  place.name = base + (is_gate || is_up ? "gate_up_proj" : "down_proj");
  place.num_rows_factor = is_gate || is_up ? 2 : 1;
  place.first_row = is_up ? piece.shape[0] : 0;
  return place;
}

void check_shape(const Tensor& tensor, const std::vector<std::int64_t>& shape) {
  COTERIE_REQUIRE(tensor.shape() == shape, tensor.place(), ": shape ", format_shape(tensor.shape()),
                  ", the model needs ", format_shape(shape));
}

/// What the checkpoint holds of a piece; undefined if it has no tensor for it.
at::Tensor find_piece(const ParameterPiece& piece, const Checkpoint& checkpoint) {
  std::string second = piece.name;
  replace(second, ".block_sparse_moe.gate.", ".mlp.gate.");
  for (const std::string& name : {piece.name, second}) {
    if (const Tensor* tensor = checkpoint.find(name)) {
      check_shape(*tensor, piece.shape);
      return rectangle(*tensor, piece.start, piece.size);
    }
  }
  const auto place = fused_place(piece);
  const Tensor* fused = place ? checkpoint.find(place->name) : nullptr;
  if (fused == nullptr) {
    return {};
  }
  COTERIE_REQUIRE(fused->shape().size() == 3 && fused->shape()[0] > place->expert &&
                      fused->shape()[1] == place->num_rows_factor * piece.shape[0] &&
                      fused->shape()[2] == piece.shape[1],
                  fused->place(), ": shape ", format_shape(fused->shape()), " cannot hold ",
                  piece.name, " of shape ", format_shape(piece.shape));
  return rectangle(*fused, {place->expert, place->first_row + piece.start[0], piece.start[1]},
                   {1, piece.size[0], piece.size[1]})
      .squeeze(0);
}

}  // namespace

at::Tensor view_of(const ParameterPiece& piece, const at::Tensor& local) {
  const at::Tensor base = piece.slot < 0 ? local : local.select(0, piece.slot);
  return base.narrow(0, piece.row, piece.size.at(0));
}

ParameterPiece whole_piece(const std::string& name, at::IntArrayRef shape) {
  return {name, shape.vec(), std::vector<std::int64_t>(shape.size(), 0), shape.vec()};
}

void begin_parameter(TrainableParameter& parameter, std::uint64_t seed) {
  const at::NoGradGuard no_gradients;
  if (parameter.beginning == Beginning::kGiven) {
    return;
  }
  if (parameter.beginning == Beginning::kNormal && parameter.deviation < kNothing) {
    parameter.value.zero_();
    return;
  }
  if (parameter.beginning != Beginning::kNormal) {
    parameter.value.fill_(parameter.beginning == Beginning::kOnes ? 1.0 : 0.0);
    return;
  }
  for (const ParameterPiece& piece : parameter.pieces) {
    view_of(piece, parameter.value).copy_(drawn(piece, seed, parameter.deviation));
  }
}

void read_parameter(TrainableParameter& parameter, const Checkpoint& checkpoint) {
  const at::NoGradGuard no_gradients;
  for (const ParameterPiece& piece : parameter.pieces) {
    const at::Tensor stored = find_piece(piece, checkpoint);
    COTERIE_REQUIRE(stored.defined(), checkpoint.path().string(), ": tensor \"", piece.name,
                    "\" of shape ", format_shape(piece.shape), " is missing");
    view_of(piece, parameter.value).copy_(stored);
  }
}

}  // namespace coterie::models
