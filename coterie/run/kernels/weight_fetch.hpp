// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to the room: fetching weights that come next. See vector_types.hpp.

#include "coterie/run/kernels/vector_types.hpp"

namespace coterie::kernels {

/// A plan to fetch one block of the weights of some tiles of C columns, in equal shares, so that
/// memory works while the tiles compute.
template <class W, i64 C, i64 Step>
class WeightFetch {
 public:
  /// `count` steps of the column tiles [tile, tile + num), `skip` bytes after the weights'
  /// pointers; `calls` shares in all.
  void plan(i64 tile, i64 num, i64 skip, i64 count, i64 calls) {
    skip_ = skip;
    tile_ = tile;
    end_ = tile + num;
    column_ = 0;
    line_ = 0;
    lines_ = (count * Step * static_cast<i64>(sizeof(W)) + 63) / 64;
    share_ = (num * C * lines_ + calls - 1) / calls;
  }

  /// Fetches one share. weights[slots[t] + c]: row of column c of tile t.
  void share(const W* const* weights, const i64* slots) {
    i64 left = share_;
    while (left > 0 && tile_ < end_) {
      const char* const at = reinterpret_cast<const char*>(weights[slots[tile_] + column_]) + skip_;
      const i64 end = lines_ - line_ < left ? lines_ : line_ + left;
      left -= end - line_;
      for (i64 line = line_; line < end; ++line) {
        __builtin_prefetch(at + line * 64, 0, 2);
      }
      line_ = end;
      if (end == lines_) {
        line_ = 0;
        column_ = column_ + 1 == C ? 0 : column_ + 1;
        tile_ += column_ == 0;
      }
    }
  }

 private:
  i64 skip_ = 0;  // bytes from the weights' pointers to what is fetched
  i64 tile_ = 0;  // the tile of columns in turn
  i64 end_ = 0;
  i64 column_ = 0;  // the column in turn
  i64 line_ = 0;    // the cache line in turn
  i64 lines_ = 0;   // lines a column
  i64 share_ = 0;   // lines a share
};

}  // namespace coterie::kernels
