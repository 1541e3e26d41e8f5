// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to the room: sums of outer products, written once for all instruction sets and for fp32
// and fp64. See vector_types.hpp.
//
// An element's sum is one chain of multiply-adds over k upwards; between blocks of k it rests in
// memory unrounded. So neither tiles nor blocks nor the other rows can change its bits.
//
//   k in blocks of kDepth
//   A packed as [tile][k][row of tile] where its lines hold one k each, else as [row][k]
//   B packed as [tile][k][column of tile], or used where it lies if there are few rows
//
// V, the vectors of one type, has Scalar and Vec of the sums, Element and Operand of the panels
// (the same, or two bf16 of neighbouring k: kPairs), kLanes, zero, load (both; fp32 has load_bf16
// too), store, broadcast, multiply_add, kOuterRows (rows of a register tile), kOuterVectors (its
// width) and kOuterDepth. With kPairs, "k" below counts pairs, and pairs(even, odd) makes an
// Operand of two lines.

#include "coterie/run/kernels/outer_block.hpp"
#include "coterie/run/kernels/outer_tiles.hpp"

namespace coterie::kernels {

template <class V>
class OuterLoops {
  using Scalar = typename V::Scalar;
  using Element = typename V::Element;
  static constexpr i64 kPer = V::kPairs ? 2 : 1;
  static constexpr i64 kR = V::kOuterRows;
  static constexpr i64 kC = V::kOuterVectors * V::kLanes;
  static constexpr i64 kDepth = V::kOuterDepth;
  static constexpr i64 kFewDepth = 16;  // k between visits of a sum where B is not packed
  static_assert(kOuterUnit % kC == 0 && kOuterRows % kR == 0);
  static_assert(kDepth * static_cast<i64>(sizeof(Element)) <= kOuterDepthBytes);

 public:
  explicit OuterLoops(const OuterBlock& block)
      : block_(block),
        depth_((block.depth + kPer - 1) / kPer),
        a_(reinterpret_cast<Element*>(block.scratch)),
        b_(a_ + kOuterRows * kDepth),
        line_(b_ + kOuterColumns * kDepth),
        sums_(static_cast<Scalar*>(block.sums)) {}

  void run() {
    if (block_.depth == 0 && !block_.start_from_sums) {
      for (i64 m = 0; m < block_.num_rows; ++m) {
        std::memset(sums_ + m * block_.sums_stride, 0,
                    static_cast<std::size_t>(block_.sums_stride) * sizeof(Scalar));
      }
    }
    place_tiles();
    for (i64 first = 0; first < depth_; first += kDepth) {
      const i64 depth = depth_ - first < kDepth ? depth_ - first : kDepth;
      const bool add = first > 0 || block_.start_from_sums;
      if (block_.a.by_depth) {
        pack_a_by_depth(first, depth);
      } else {
        pack_a(first, depth);
      }
      if (block_.few_rows) {
        multiply_in_place(first, depth, add);
      } else {
        multiply_packed(first, depth, add);
      }
    }
  }

 private:
  /// Rows of each tile: even where A lies by rows, whole tiles and a rest where it is cut by tiles.
  void place_tiles() {
    num_tiles_ = (block_.num_rows + kR - 1) / kR;
    for (i64 t = 0; t <= num_tiles_; ++t) {
      const i64 whole = t * kR < block_.num_rows ? t * kR : block_.num_rows;
      starts_[t] = block_.a.by_depth ? whole : t * block_.num_rows / num_tiles_;
    }
  }

  static const char* line_of(const OuterOperand& operand, i64 i) {
    const auto* const line = operand.lines != nullptr ? static_cast<const char*>(operand.lines[i])
                                                      : operand.base + i * operand.stride;
    return line == nullptr ? nullptr : line + operand.offset;
  }

  /// Elements [from, from + count) of the line (or two) of one k.
  void across_lines(const OuterOperand& operand, i64 k, i64 from, i64 count, Element* to) const {
    if constexpr (V::kPairs) {
      const char* const odd = 2 * k + 1 < block_.depth ? line_of(operand, 2 * k + 1) : nullptr;
      interleave_lines<V>(line_of(operand, 2 * k), odd, from, count, to);
    } else {
      widen_line<V>(line_of(operand, k), operand.type, from, count, to);
    }
  }

  /// `depth` values of k, from `first` on, of a line that holds all.
  void along_line(const char* line, DType type, i64 first, i64 depth, Element* to) const {
    if constexpr (V::kPairs) {
      pair_line<V>(line, block_.depth, first, depth, to);
    } else {
      widen_line<V>(line, type, first, depth, to);
    }
  }

  /// [row][k]
  void pack_a(i64 first, i64 depth) {
    for (i64 m = 0; m < block_.num_rows; ++m) {
      const char* const line = line_of(block_.a, m);
      if (line == nullptr) {
        std::memset(a_ + m * kDepth, 0, static_cast<std::size_t>(depth) * sizeof(Element));
      } else {
        along_line(line, block_.a.type, first, depth, a_ + m * kDepth);
      }
    }
  }

  /// [tile][k][row of tile]
  void pack_a_by_depth(i64 first, i64 depth) {
    for (i64 k = 0; k < depth; ++k) {
      across_lines(block_.a, first + k, 0, block_.num_rows, line_);
      for (i64 t = 0; t < num_tiles_; ++t) {
        const i64 rows = starts_[t + 1] - starts_[t];
        Element* const to = a_ + starts_[t] * depth + k * rows;
        if (rows == kR) {
          std::memcpy(to, line_ + starts_[t], kR * sizeof(Element));
        } else {
          for (i64 i = 0; i < rows; ++i) {
            to[i] = line_[starts_[t] + i];
          }
        }
      }
    }
  }

  /// Columns [from, num_columns) as [tile][k][column of tile], zeros beyond the last.
  void pack_b(i64 from, i64 first, i64 depth) {
    if (!block_.b.by_depth) {
      pack_b_by_columns(first, depth);
      return;
    }
    const i64 count = block_.num_columns - from;
    const i64 whole = count / kC;
    for (i64 k = 0; k < depth; ++k) {
      for (i64 i = 0; i < kPer; ++i) {
        const i64 ahead = (first + k + 6) * kPer + i;
        fetch_line(line_of(block_.b, ahead < block_.depth ? ahead : block_.depth - 1), from, count,
                   block_.b.type);
      }
      for (i64 t = 0; t < whole; ++t) {
        across_lines(block_.b, first + k, from + t * kC, kC, b_ + (t * depth + k) * kC);
      }
      if (whole * kC < count) {
        Element* const to = b_ + (whole * depth + k) * kC;
        const i64 rest = count - whole * kC;
        across_lines(block_.b, first + k, from + whole * kC, rest, to);
        for (i64 j = rest; j < kC; ++j) {
          to[j] = Element{0};
        }
      }
    }
  }

  void pack_b_by_columns(i64 first, i64 depth) {
    for (i64 n = 0; n < block_.num_columns; n += kC) {
      Element* const to = b_ + n * depth;
      for (i64 j = 0; j < kC; ++j) {
        if (n + j < block_.num_columns) {
          along_line(line_of(block_.b, n + j), block_.b.type, first, depth, line_);
        }
        for (i64 k = 0; k < depth; ++k) {
          to[k * kC + j] = n + j < block_.num_columns ? line_[k] : Element{0};
        }
      }
    }
  }

  static void fetch_line(const char* line, i64 from, i64 count, DType type) {
    const i64 size = type == DType::kBfloat16 ? 2 : static_cast<i64>(sizeof(Scalar));
    for (i64 byte = from * size; byte < (from + count) * size; byte += 64) {
      __builtin_prefetch(line + byte, 0, 2);
    }
  }

  /// One register tile of sums: `depth` values of k from panel A's k `skip` on, B line by line.
  template <class B>
  void tile(i64 t, i64 column, i64 skip, i64 panel_depth, const B& b, bool add) {
    const i64 row = starts_[t];
    const TileOfSums<Scalar> to{sums_ + row * block_.sums_stride + column, block_.sums_stride, add};
    const i64 rows = starts_[t + 1] - row;
    with_tile_rows<V::kOuterRows>(rows, [&]<int R>() {
      if (block_.a.by_depth) {
        outer_tile<V, R>(ByDepth<Element, R>{a_ + row * panel_depth + skip * rows}, b, to);
      } else {
        outer_tile<V, R>(ByRows<Element, kDepth>{a_ + row * kDepth + skip}, b, to);
      }
    });
  }

  void multiply_packed(i64 first, i64 depth, bool add) {
    pack_b(0, first, depth);
    for (i64 n = 0; n < block_.num_columns; n += kC) {
      for (i64 t = 0; t < num_tiles_; ++t) {
        tile(t, n, 0, depth, PackedLines<V>{b_ + n * depth, depth}, add);
      }
    }
  }

  void multiply_in_place(i64 first, i64 depth, bool add) {
    const i64 whole = block_.num_columns / kC * kC;
    if (whole < block_.num_columns) {
      pack_b(whole, first, depth);
      for (i64 t = 0; t < num_tiles_; ++t) {
        tile(t, whole, 0, depth, PackedLines<V>{b_, depth}, add);
      }
    }
    for (i64 k = 0; k < depth; k += kFewDepth) {
      const i64 num = depth - k < kFewDepth ? depth - k : kFewDepth;
      const char* lines[kFewDepth * kPer];
      for (i64 i = 0; i < num * kPer; ++i) {
        const i64 line = (first + k) * kPer + i;
        lines[i] = line < block_.depth ? line_of(block_.b, line) : nullptr;
      }
      for (i64 n = 0; n < whole; n += kC) {
        for (i64 t = 0; t < num_tiles_; ++t) {
          if constexpr (V::kPairs) {
            tile(t, n, k, depth, PairsInPlace<V>{lines, n, num}, add || k > 0);
          } else if (block_.b.type == DType::kBfloat16) {
            if constexpr (sizeof(Scalar) == 4) {
              tile(t, n, k, depth, LinesInPlace<V, std::uint16_t>{lines, n, num}, add || k > 0);
            }
          } else {
            tile(t, n, k, depth, LinesInPlace<V, Scalar>{lines, n, num}, add || k > 0);
          }
        }
      }
    }
  }

  const OuterBlock& block_;
  i64 depth_;  // in values of k or pairs of them
  Element* a_;
  Element* b_;
  Element* line_;  // one line as a panel has it
  Scalar* sums_;
  i64 num_tiles_ = 0;
  i64 starts_[kOuterRows / kR + 2] = {};
};

template <class V>
void run_outer(const OuterBlock& block) {
  OuterLoops<V>(block).run();
}

}  // namespace coterie::kernels
