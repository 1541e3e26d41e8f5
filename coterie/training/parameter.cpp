// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/parameter.hpp"

#include "coterie/base/error.hpp"

namespace coterie::training {

void check_pieces(const std::string& name, const std::vector<Piece>& pieces,
                  const at::Tensor& local) {
  std::int64_t covered = 0;
  for (const Piece& piece : pieces) {
    const std::size_t dims = piece.shape.size();
    COTERIE_CHECK(dims >= 1 && piece.start.size() == dims && piece.size.size() == dims, name,
                  ": piece of ", piece.name, " has no consistent shape");
    for (std::size_t d = 0; d < dims; ++d) {
      COTERIE_CHECK(piece.start[d] >= 0 && piece.start[d] + piece.size[d] <= piece.shape[d], name,
                    ": piece of ", piece.name, ": dimension ", d, " ends at ",
                    piece.start[d] + piece.size[d], " of ", piece.shape[d]);
    }
    const at::Tensor view = view_of(piece, local);
    COTERIE_CHECK(view.sizes() == at::IntArrayRef(piece.size), name, ": piece of ", piece.name,
                  " has shape ", at::IntArrayRef(piece.size), ", its place ", view.sizes());
    covered += view.numel();
  }
  COTERIE_CHECK(covered == local.numel(), name, ": pieces cover ", covered, " of ", local.numel(),
                " elements");
}

at::Tensor Parameter::gradient() const {
  const at::Tensor& gradient = value.grad();
  COTERIE_CHECK(gradient.defined(), name, ": has no gradient");
  return gradient;
}

}  // namespace coterie::training
