// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/routing/expert_sets.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "coterie/base/error.hpp"

namespace coterie::routing {
namespace {

/// A sorted row in one number: the ids, each in `bits` bits, first id highest, so that numbers
/// compare as rows do. "No expert" becomes num_experts, which sorts behind every id.
template <typename Key>
std::vector<Key> packed_rows(std::span<const std::uint16_t> ids, std::int32_t top_k,
                             std::int32_t num_experts, int bits) {
  const auto width = static_cast<std::size_t>(top_k);
  const auto none = static_cast<std::uint16_t>(num_experts);
  std::vector<Key> keys(ids.size() / width);
  std::vector<std::uint16_t> row(width);
  for (std::size_t r = 0; r < keys.size(); ++r) {
    const std::uint16_t* source = ids.data() + r * width;
    for (std::size_t i = 0; i < width; ++i) {  // insertion sort: rows are short
      const std::uint16_t id = source[i] == kNoExpert ? none : source[i];
      std::size_t at = i;
      for (; at > 0 && row[at - 1] > id; --at) {
        row[at] = row[at - 1];
      }
      row[at] = id;
    }
    Key key = 0;
    for (const std::uint16_t id : row) {
      key = (key << bits) | id;
    }
    keys[r] = key;
  }
  return keys;
}

/// Least significant digit first, 11 bits a pass.
void radix_sort(std::vector<std::uint64_t>& keys, int key_bits) {
  constexpr int kDigit = 11;
  constexpr std::uint64_t kMask = (1U << kDigit) - 1;
  std::vector<std::uint64_t> other(keys.size());
  for (int shift = 0; shift < key_bits; shift += kDigit) {
    std::vector<std::size_t> start(kMask + 2);
    for (const std::uint64_t key : keys) {
      ++start[((key >> shift) & kMask) + 1];
    }
    std::partial_sum(start.begin(), start.end(), start.begin());
    for (const std::uint64_t key : keys) {
      other[start[(key >> shift) & kMask]++] = key;
    }
    keys.swap(other);
  }
}

template <typename Key>
ExpertSets count_keys(const std::vector<Key>& keys, std::int32_t top_k, std::int32_t num_experts,
                      int bits) {
  const Key mask = (Key{1} << bits) - 1;
  ExpertSets sets;
  sets.num_experts = num_experts;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i > 0 && keys[i] == keys[i - 1]) {
      if (!sets.tokens.empty()) {
        ++sets.tokens.back();
      }
      continue;
    }
    const std::size_t before = sets.experts.size();
    for (int place = top_k - 1; place >= 0; --place) {
      const auto id = static_cast<std::uint16_t>((keys[i] >> (place * bits)) & mask);
      if (id == num_experts) {
        break;
      }
      sets.experts.push_back(id);
    }
    if (sets.experts.size() == before) {
      break;  // rows without an expert stand last
    }
    sets.offsets.push_back(static_cast<std::uint32_t>(sets.experts.size()));
    sets.tokens.push_back(1);
  }
  return sets;
}

void check_shape(std::span<const std::uint16_t> ids, std::int32_t top_k, std::int32_t num_experts) {
  COTERIE_REQUIRE(top_k > 0, "top_k is ", top_k);
  COTERIE_REQUIRE(num_experts > 0 && num_experts < kNoExpert, "num_experts is ", num_experts);
  COTERIE_REQUIRE(ids.size() % static_cast<std::size_t>(top_k) == 0, ids.size(),
                  " ids are no whole rows of ", top_k);
  COTERIE_REQUIRE(ids.size() <= std::numeric_limits<std::uint32_t>::max(), ids.size(),
                  " ids are more than one table of sets can hold");
}

}  // namespace

void check_rows(std::span<const std::uint16_t> ids, std::int32_t top_k, std::int32_t num_experts,
                const std::string& where) {
  const auto width = static_cast<std::size_t>(top_k);
  for (std::size_t begin = 0; begin < ids.size(); begin += width) {
    const std::uint16_t* row = ids.data() + begin;
    for (std::size_t i = 0; i < width; ++i) {
      if (row[i] == kNoExpert) {
        continue;
      }
      COTERIE_REQUIRE(row[i] < num_experts, where, "row ", begin / width, ": expert id ", row[i],
                      " is not in [0, ", num_experts, ")");
      for (std::size_t j = 0; j < i; ++j) {
        COTERIE_REQUIRE(row[j] != row[i], where, "row ", begin / width, ": expert ", row[i],
                        " stands twice");
      }
    }
  }
}

std::uint64_t ExpertSets::num_tokens() const {
  return std::accumulate(tokens.begin(), tokens.end(), std::uint64_t{0});
}

std::uint64_t ExpertSets::num_picks() const {
  std::uint64_t picks = 0;
  for (std::size_t i = 0; i < num_sets(); ++i) {
    picks += std::uint64_t{tokens[i]} * set(i).size();
  }
  return picks;
}

std::vector<std::uint64_t> ExpertSets::expert_loads() const {
  std::vector<std::uint64_t> loads(static_cast<std::size_t>(num_experts));
  for (std::size_t i = 0; i < num_sets(); ++i) {
    for (const std::uint16_t expert : set(i)) {
      loads[expert] += tokens[i];
    }
  }
  return loads;
}

ExpertSets make_expert_sets(std::span<const std::uint16_t> ids, std::int32_t top_k,
                            std::int32_t num_experts) {
  check_shape(ids, top_k, num_experts);
  check_rows(ids, top_k, num_experts, "");
  const int bits = std::bit_width(static_cast<std::uint32_t>(num_experts));
  const int key_bits = bits * top_k;
  if (key_bits <= 64) {
    auto keys = packed_rows<std::uint64_t>(ids, top_k, num_experts, bits);
    radix_sort(keys, key_bits);
    return count_keys(keys, top_k, num_experts, bits);
  }
  if (key_bits <= 128) {
    __extension__ using Key = unsigned __int128;
    auto keys = packed_rows<Key>(ids, top_k, num_experts, bits);
    std::sort(keys.begin(), keys.end());
    return count_keys(keys, top_k, num_experts, bits);
  }
  return make_expert_sets_reference(ids, top_k, num_experts);
}

ExpertSets make_expert_sets_reference(std::span<const std::uint16_t> ids, std::int32_t top_k,
                                      std::int32_t num_experts) {
  check_shape(ids, top_k, num_experts);
  check_rows(ids, top_k, num_experts, "");
  const auto width = static_cast<std::size_t>(top_k);
  std::vector<std::vector<std::uint16_t>> rows;
  for (std::size_t begin = 0; begin < ids.size(); begin += width) {
    const auto row = ids.subspan(begin, width);
    rows.emplace_back(row.begin(), row.end());
    std::sort(rows.back().begin(), rows.back().end());
  }
  std::sort(rows.begin(), rows.end());

  ExpertSets sets;
  sets.num_experts = num_experts;
  for (std::size_t i = 0; i < rows.size() && rows[i].front() != kNoExpert; ++i) {
    if (i > 0 && rows[i] == rows[i - 1]) {
      ++sets.tokens.back();
      continue;
    }
    const auto end = std::find(rows[i].begin(), rows[i].end(), kNoExpert);
    sets.experts.insert(sets.experts.end(), rows[i].begin(), end);
    sets.offsets.push_back(static_cast<std::uint32_t>(sets.experts.size()));
    sets.tokens.push_back(1);
  }
  return sets;
}

}  // namespace coterie::routing
