// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/refine.hpp"

#include <algorithm>
#include <cmath>

#include "coterie/base/error.hpp"

namespace coterie::placement {
namespace {

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
constexpr std::int64_t kLocked = std::numeric_limits<std::int64_t>::max();

/// Item e goes to device `to`; item f, if any, takes its place.
struct Step {
  std::size_t e = kNone;
  std::size_t f = kNone;
  std::size_t to = 0;
  double change = std::numeric_limits<double>::infinity();
};

/// The walk of one search: state, penalties, locks and the best point met.
class Walk {
 public:
  Walk(const SearchProblem& problem, const std::vector<std::int32_t>& start)
      : problem_(problem),
        state_(*problem.sets, start, problem.num_devices),
        loads_(state_.num_devices()),
        free_at_(state_.num_items()) {
    for (std::size_t e = 0; e < start.size(); ++e) {
      loads_[static_cast<std::size_t>(start[e])] += problem.loads[e];
    }
    std::int64_t rows = 0;
    for (const std::int64_t r : state_.rows()) {
      rows += r;
    }
    mean_rows_ = std::max(1.0, static_cast<double>(rows) / static_cast<double>(loads_.size()));
    score_ = score();
    best_ = score_;
    best_device_of_ = state_.device_of();
  }

  [[nodiscard]] const Score& best() const { return best_; }
  [[nodiscard]] const Score& current() const { return score_; }
  [[nodiscard]] std::size_t num_items() const { return state_.num_items(); }
  void set_penalty(double penalty) { penalty_ = penalty; }
  [[nodiscard]] double penalty() const { return penalty_; }

  /// The allowed step that changes the penalised objective most for the better; e = kNone: none.
  [[nodiscard]] Step best_step(std::int64_t now) const {
    Step best;
    for (std::size_t a = 0; a < loads_.size(); ++a) {
      for (std::size_t b = a + 1; b < loads_.size() && same_block(a, b); ++b) {
        scan_swaps(a, b, now, best);
        scan_moves(a, b, now, best);
        scan_moves(b, a, now, best);
      }
    }
    return best;
  }

  void take(const Step& step) {
    const auto from = static_cast<std::size_t>(state_.device_of()[step.e]);
    const std::int64_t moved =
        problem_.loads[step.e] - (step.f == kNone ? 0 : problem_.loads[step.f]);
    loads_[from] -= moved;
    loads_[step.to] += moved;
    state_.move(step.e, step.to);
    if (step.f != kNone) {
      state_.move(step.f, from);
    }
    score_ = score();
    if (score_ < best_) {
      best_ = score_;
      best_device_of_ = state_.device_of();
    }
  }

  void lock(const Step& step, std::int64_t until_e, std::int64_t until_f) {
    free_at_[step.e] = until_e;
    if (step.f != kNone) {
      free_at_[step.f] = until_f;
    }
  }
  void unlock_all() { std::fill(free_at_.begin(), free_at_.end(), 0); }

  /// Back to the best point met.
  void return_to_best() {
    for (std::size_t e = 0; e < num_items(); ++e) {
      const auto from = static_cast<std::size_t>(state_.device_of()[e]);
      const auto to = static_cast<std::size_t>(best_device_of_[e]);
      if (from != to) {
        loads_[from] -= problem_.loads[e];
        loads_[to] += problem_.loads[e];
        state_.move(e, to);
      }
    }
    score_ = best_;
  }

  /// Swaps `count` random pairs that may be swapped.
  void kick(std::int64_t count, Random& random) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::size_t e = random.below(num_items());
      const std::size_t f = random.below(num_items());
      const auto to = static_cast<std::size_t>(state_.device_of()[f]);
      const auto from = static_cast<std::size_t>(state_.device_of()[e]);
      if (from != to && same_block(from, to) && may_swap(e, f)) {
        take({e, f, to, 0});
      }
    }
  }

  [[nodiscard]] Refined result() const { return {best_device_of_, best_}; }

 private:
  [[nodiscard]] bool same_block(std::size_t a, std::size_t b) const {
    const auto block = static_cast<std::size_t>(problem_.devices_a_block);
    return block == 0 || a / block == b / block;
  }
  [[nodiscard]] double excess_of(double load) const {
    return std::max(0.0, load - problem_.load_limit);
  }

  [[nodiscard]] Score score() const {
    double excess = 0;
    for (const std::int64_t load : loads_) {
      excess += std::ceil(excess_of(static_cast<double>(load)));
    }
    std::int64_t sum = 0;
    std::int64_t largest = 0;
    for (const std::int64_t rows : state_.rows()) {
      sum += rows;
      largest = std::max(largest, rows);
    }
    Score result{static_cast<std::int64_t>(excess), sum, largest};
    if (problem_.objective == Objective::kBottleneck) {
      std::swap(result.primary, result.secondary);
    }
    return result;
  }

  /// A device's part of the objective. For the bottleneck a steep power stands in for the maximum,
  /// with slope 1 at the mean, so that every device feels some pull.
  [[nodiscard]] double value_of(double rows) const {
    if (problem_.objective == Objective::kMean) {
      return rows;
    }
    const double x = rows / mean_rows_;
    const double x4 = x * x * x * x;
    const double x16 = x4 * x4 * x4 * x4;
    return mean_rows_ * x16 / 16.0;
  }

  /// Change of the penalty if `moved` load goes from device a to device b.
  [[nodiscard]] double penalty_change(std::size_t a, std::size_t b, std::int64_t moved) const {
    const auto load_a = static_cast<double>(loads_[a]);
    const auto load_b = static_cast<double>(loads_[b]);
    const auto load = static_cast<double>(moved);
    return penalty_ * problem_.load_scale *
           (excess_of(load_a - load) + excess_of(load_b + load) - excess_of(load_a) -
            excess_of(load_b));
  }

  [[nodiscard]] bool has_family_on(std::size_t e, std::size_t device, std::size_t except) const {
    if (problem_.family.empty()) {
      return false;
    }
    return std::ranges::any_of(state_.items_of(device), [&](std::int32_t item) {
      const auto x = static_cast<std::size_t>(item);
      return x != e && x != except && problem_.family[x] == problem_.family[e];
    });
  }
  [[nodiscard]] bool may_swap(std::size_t e, std::size_t f) const {
    return !has_family_on(e, static_cast<std::size_t>(state_.device_of()[f]), f) &&
           !has_family_on(f, static_cast<std::size_t>(state_.device_of()[e]), e);
  }

  /// Would a step with these changes beat the best point met? Then locks do not hold it.
  [[nodiscard]] bool beats_best(std::size_t a, std::size_t b, std::int64_t moved,
                                std::int64_t rows_a, std::int64_t rows_b) const {
    if (problem_.objective != Objective::kMean) {
      return false;
    }
    const std::int64_t sum = score_.primary + rows_a + rows_b;
    if (best_.excess == 0 && sum >= best_.primary) {
      return false;
    }
    const auto after = [&](std::size_t d, std::int64_t change) {
      return std::ceil(excess_of(static_cast<double>(loads_[d] + change))) -
             std::ceil(excess_of(static_cast<double>(loads_[d])));
    };
    const double excess = static_cast<double>(score_.excess) + after(a, -moved) + after(b, moved);
    const auto rounded = static_cast<std::int64_t>(excess);
    return rounded < best_.excess || (rounded == best_.excess && sum < best_.primary);
  }

  void scan_swaps(std::size_t a, std::size_t b, std::int64_t now, Step& best) const {
    const auto rows_a = static_cast<double>(state_.rows()[a]);
    const auto rows_b = static_cast<double>(state_.rows()[b]);
    const double value = value_of(rows_a) + value_of(rows_b);
    const bool capped = std::isfinite(problem_.load_limit);
    for (const std::int32_t item_e : state_.items_of(a)) {
      const auto e = static_cast<std::size_t>(item_e);
      for (const std::int32_t item_f : state_.items_of(b)) {
        const auto f = static_cast<std::size_t>(item_f);
        const std::int32_t change_a =
            state_.rows_added(f, a) - state_.rows_saved(e) + state_.rows_kept(e, f);
        const std::int32_t change_b =
            state_.rows_added(e, b) - state_.rows_saved(f) + state_.rows_kept(f, e);
        double change = problem_.objective == Objective::kMean
                            ? static_cast<double>(change_a + change_b)
                            : value_of(rows_a + change_a) + value_of(rows_b + change_b) - value;
        const std::int64_t moved = problem_.loads[e] - problem_.loads[f];
        if (capped) {
          change += penalty_change(a, b, moved);
        }
        if (change < best.change &&
            ((free_at_[e] <= now && free_at_[f] <= now) ||
             beats_best(a, b, moved, change_a, change_b)) &&
            may_swap(e, f)) {
          best = {e, f, b, change};
        }
      }
    }
  }

  /// Moves from a to b, where a is larger.
  void scan_moves(std::size_t a, std::size_t b, std::int64_t now, Step& best) const {
    if (state_.items_of(a).size() <= state_.items_of(b).size()) {
      return;
    }
    const auto rows_a = static_cast<double>(state_.rows()[a]);
    const auto rows_b = static_cast<double>(state_.rows()[b]);
    for (const std::int32_t item : state_.items_of(a)) {
      const auto e = static_cast<std::size_t>(item);
      const double change = value_of(rows_a - state_.rows_saved(e)) +
                            value_of(rows_b + state_.rows_added(e, b)) - value_of(rows_a) -
                            value_of(rows_b) + penalty_change(a, b, problem_.loads[e]);
      if (change < best.change && free_at_[e] <= now && !has_family_on(e, b, e)) {
        best = {e, kNone, b, change};
      }
    }
  }

  const SearchProblem& problem_;
  SwapState state_;
  std::vector<std::int64_t> loads_;
  std::vector<std::int64_t> free_at_;  ///< step from which an item may move again
  double mean_rows_ = 1;
  double penalty_ = 1;
  Score score_;
  Score best_;
  std::vector<std::int32_t> best_device_of_;
};

/// Steps while the penalised objective falls.
void go_down(Walk& walk) {
  walk.unlock_all();
  for (;;) {
    const Step step = walk.best_step(0);
    if (step.e == kNone || step.change > -1e-9) {
      return;
    }
    walk.take(step);
  }
}

void kernighan_lin_pass(Walk& walk) {
  walk.unlock_all();
  for (std::size_t moved = 0; moved < walk.num_items(); moved += 2) {
    const Step step = walk.best_step(0);
    if (step.e == kNone) {
      break;
    }
    walk.take(step);
    walk.lock(step, kLocked, kLocked);
  }
  walk.return_to_best();
}

void polish(Walk& walk, int max_passes) {
  for (const double penalty : {1.0, 4.0}) {
    walk.set_penalty(penalty);
    walk.return_to_best();
    go_down(walk);
    walk.return_to_best();
    for (int pass = 0; pass < max_passes; ++pass) {
      const Score before = walk.best();
      kernighan_lin_pass(walk);
      if (!(walk.best() < before)) {
        break;
      }
    }
  }
  if (walk.best().excess > 0) {  // strict repair: nothing weighs against load
    walk.set_penalty(1e9);
    for (int pass = 0; pass < 2 + max_passes && walk.best().excess > 0; ++pass) {
      go_down(walk);
      kernighan_lin_pass(walk);
    }
  }
}

/// Raises the penalty where the walk stays overloaded and lowers it where it never is, so that it
/// keeps crossing the border, where the good placements are.
class PenaltyControl {
 public:
  void see(Walk& walk) {
    over_ += walk.current().excess > 0 ? 1 : 0;
    if (++seen_ < kWindow) {
      return;
    }
    if (over_ == kWindow) {
      walk.set_penalty(std::min(1e6, walk.penalty() * 1.5));
    } else if (over_ == 0) {
      walk.set_penalty(std::max(0.02, walk.penalty() / 1.5));
    }
    seen_ = 0;
    over_ = 0;
  }

 private:
  static constexpr int kWindow = 8;
  int seen_ = 0;
  int over_ = 0;
};

}  // namespace

Score score_of(const SearchProblem& problem, const std::vector<std::int32_t>& device_of) {
  return Walk(problem, device_of).best();
}

Refined descend(const SearchProblem& problem, std::vector<std::int32_t> start, int max_passes) {
  Walk walk(problem, start);
  polish(walk, max_passes);
  return walk.result();
}

Refined explore(const SearchProblem& problem, std::vector<std::int32_t> start,
                std::int64_t num_steps, Random& random) {
  Walk walk(problem, start);
  go_down(walk);
  walk.unlock_all();
  PenaltyControl control;
  const auto items = static_cast<std::int64_t>(walk.num_items());
  const std::int64_t patience = 6 * items;
  std::int64_t improved_at = 0;
  for (std::int64_t now = 1; now <= num_steps; ++now) {
    const Step step = walk.best_step(now);
    if (step.e == kNone) {
      walk.unlock_all();
      continue;
    }
    const Score before = walk.best();
    walk.take(step);
    const auto tenure = [&] {
      return now + 2 + items / 16 +
             static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(2 + items / 6)));
    };
    walk.lock(step, tenure(), tenure());
    control.see(walk);
    if (walk.best() < before) {
      improved_at = now;
    } else if (now - improved_at > patience) {
      walk.return_to_best();
      walk.kick(2 + items / 12, random);
      improved_at = now;
    }
  }
  polish(walk, 8);
  return walk.result();
}

}  // namespace coterie::placement
