// SPDX-License-Identifier: Apache-2.0
// Every gate against its formula in plain loops that share no code with it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "gate_case.hpp"

namespace coterie::gates {
namespace {

using Row = std::vector<double>;

Row row_of(const at::Tensor& matrix, std::int64_t r) {
  const at::Tensor row = matrix.detach().to(at::kDouble)[r].contiguous();
  return {row.const_data_ptr<double>(), row.const_data_ptr<double>() + row.numel()};
}

Row product(const at::Tensor& weight, const Row& x) {
  Row y;
  for (std::int64_t e = 0; e < weight.size(0); ++e) {
    const Row w = row_of(weight, e);
    y.push_back(std::inner_product(w.begin(), w.end(), x.begin(), 0.0));
  }
  return y;
}

double sigmoid(double v) {
  return 1.0 / (1.0 + std::exp(-v));
}

Row softmax(const Row& logits) {
  Row p;
  for (const double v : logits) {
    p.push_back(std::exp(v));
  }
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& v : p) {
    v /= sum;
  }
  return p;
}

std::vector<std::int64_t> best(const Row& scores, std::size_t k) {
  std::vector<std::int64_t> ids(scores.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](auto a, auto b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  ids.resize(k);
  return ids;
}

void expect_row(const Routing& routing, std::int64_t t, const std::vector<std::int64_t>& ids,
                const Row& weights) {
  ASSERT_EQ(routing.ids.size(1), static_cast<std::int64_t>(ids.size()));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto column = static_cast<std::int64_t>(i);
    EXPECT_EQ(routing.ids[t][column].item<std::int64_t>(), ids[i]) << "token " << t;
    EXPECT_NEAR(routing.weights[t][column].item<double>(), weights[i], 1e-12) << "token " << t;
  }
}

Row pick(const Row& values, const std::vector<std::int64_t>& ids) {
  Row picked;
  for (const auto id : ids) {
    picked.push_back(values[static_cast<std::size_t>(id)]);
  }
  return picked;
}

Row divided_by_sum(Row values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  for (double& v : values) {
    v /= sum;
  }
  return values;
}

at::Tensor weight_of(const Gate& gate, const char* name) {
  return gate.named_parameters()[name].detach();
}

TEST(GshardGate, IsSoftmaxOverTheKeptNoisyLogits) {
  GateOptions o = small_gate(GateKind::kGshard, 8, 3);
  o.noise_stream = 11;
  const auto gate = random_gate(o, 3);
  TokenBatch batch = random_batch({7, 5}, o.hidden, 2);
  for (const bool training : {false, true}) {
    batch.training = training;
    const Routing routing = gate->forward(batch);
    const at::Tensor noise = normal_noise(batch, 8, 11);
    for (std::int64_t t = 0; t < 12; ++t) {
      Row h = product(weight_of(*gate, "weight"), row_of(batch.x, t));
      const Row width = product(weight_of(*gate, "noise_weight"), row_of(batch.x, t));
      const Row draw = row_of(noise, t);
      for (std::size_t e = 0; training && e < 8; ++e) {
        h[e] += draw[e] * std::log1p(std::exp(width[e]));
      }
      const auto ids = best(h, 3);
      expect_row(routing, t, ids, softmax(pick(h, ids)));
    }
  }
}

TEST(SwitchGate, IsTheBestProbabilityOfAJitteredToken) {
  GateOptions o = small_gate(GateKind::kSwitch, 8, 1);
  o.jitter = 0.25;
  const auto gate = random_gate(o, 4);
  TokenBatch batch = random_batch({9}, o.hidden, 5);
  for (const bool training : {false, true}) {
    batch.training = training;
    const Routing routing = gate->forward(batch);
    const at::Tensor noise = uniform_noise(batch, o.hidden, 0);
    for (std::int64_t t = 0; t < 9; ++t) {
      Row x = row_of(batch.x, t);
      const Row draw = row_of(noise, t);
      for (std::size_t h = 0; training && h < x.size(); ++h) {
        x[h] *= 0.75 + 0.5 * draw[h];
      }
      const Row p = softmax(product(weight_of(*gate, "weight"), x));
      const auto ids = best(p, 1);
      expect_row(routing, t, ids, pick(p, ids));
    }
  }
}

TEST(SigmoidGate, ScalesByTheSigmoidOfTheLogit) {
  for (const bool renormalise : {false, true}) {
    GateOptions o = small_gate(GateKind::kSigmoid, 8, 3);
    o.renormalise = renormalise;
    const auto gate = random_gate(o, 6);
    const TokenBatch batch = random_batch({8}, o.hidden, 7);
    const Routing routing = gate->forward(batch);
    for (std::int64_t t = 0; t < 8; ++t) {
      const Row logits = product(weight_of(*gate, "weight"), row_of(batch.x, t));
      const auto ids = best(logits, 3);
      Row weights;
      for (const double logit : pick(logits, ids)) {
        weights.push_back(sigmoid(logit));
      }
      expect_row(routing, t, ids, renormalise ? divided_by_sum(weights) : weights);
    }
  }
}

/// DeepSeek's choice for one token: groups of neighbours, the best groups, the best experts there.
std::vector<std::int64_t> deepseek_choice(const Row& choice, const GateOptions& o) {
  const auto size = static_cast<std::size_t>(o.num_experts / o.num_groups);
  Row group_scores;
  for (std::size_t g = 0; g < static_cast<std::size_t>(o.num_groups); ++g) {
    Row group(choice.begin() + static_cast<std::ptrdiff_t>(g * size),
              choice.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
    std::sort(group.rbegin(), group.rend());
    group_scores.push_back(o.group_score == GroupScore::kMax ? group[0] : group[0] + group[1]);
  }
  const auto kept = best(group_scores, static_cast<std::size_t>(o.num_groups_kept));
  Row masked(choice.size(), -std::numeric_limits<double>::infinity());
  for (const auto g : kept) {
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t e = static_cast<std::size_t>(g) * size + i;
      masked[e] = choice[e];
    }
  }
  return best(masked, static_cast<std::size_t>(o.top_k));
}

TEST(DeepseekGate, ChoosesByBiasAndGroupsAndWeighsWithoutBias) {
  for (const bool v3 : {true, false}) {
    GateOptions o = small_gate(GateKind::kDeepseek, 16, 4);
    o.num_groups = 4;
    o.num_groups_kept = 2;
    o.scaling = 2.5;
    o.selection_bias = o.renormalise = v3;
    o.score = v3 ? ScoreFunction::kSigmoid : ScoreFunction::kSoftmax;
    o.group_score = v3 ? GroupScore::kTop2Sum : GroupScore::kMax;
    const auto gate = random_gate(o, 8);
    const TokenBatch batch = random_batch({30}, o.hidden, 9);
    const Routing routing = gate->forward(batch);
    int changed_by_bias = 0;
    for (std::int64_t t = 0; t < 30; ++t) {
      Row s = product(weight_of(*gate, "weight"), row_of(batch.x, t));
      if (v3) {
        std::transform(s.begin(), s.end(), s.begin(), sigmoid);
      } else {
        s = softmax(s);
      }
      Row choice = s;
      for (std::size_t e = 0; v3 && e < 16; ++e) {
        choice[e] += gate->named_buffers()["e_score_correction_bias"][static_cast<std::int64_t>(e)]
                         .item<double>();
      }
      const auto ids = deepseek_choice(choice, o);
      changed_by_bias += ids != deepseek_choice(s, o) ? 1 : 0;
      Row weights = pick(s, ids);
      weights = v3 ? divided_by_sum(weights) : weights;
      for (double& w : weights) {
        w *= 2.5;
      }
      expect_row(routing, t, ids, weights);
    }
    EXPECT_EQ(changed_by_bias > 0, v3);
  }
}

TEST(DeepseekGate, NeverTakesExpertsOfMaskedGroupsThoughAllScoresAreNegative) {
  GateOptions o = small_gate(GateKind::kDeepseek, 8, 2);
  o.num_groups = 4;
  o.num_groups_kept = 1;
  o.selection_bias = true;
  const auto gate = random_gate(o, 1);
  gate->named_buffers()["e_score_correction_bias"].fill_(-5.0);
  const at::Tensor ids = gate->forward(random_batch({50}, o.hidden, 2)).ids;
  const at::Tensor group = at::floor_divide(ids, 2);
  EXPECT_TRUE(at::equal(group.select(1, 0), group.select(1, 1)));
  EXPECT_FALSE(at::equal(ids.select(1, 0), ids.select(1, 1)));
}

TEST(XmoeGate, IsSoftmaxOfACosineOverATemperature) {
  for (const bool renormalise : {false, true}) {
    GateOptions o = small_gate(GateKind::kXmoe, 8, 2);
    o.projection = 3;
    o.renormalise = renormalise;
    o.temperature = 0.2;
    const auto gate = random_gate(o, 10);
    const TokenBatch batch = random_batch({8}, o.hidden, 11);
    const Routing routing = gate->forward(batch);
    for (std::int64_t t = 0; t < 8; ++t) {
      const Row z = product(weight_of(*gate, "projection"), row_of(batch.x, t));
      Row logits;
      for (std::int64_t e = 0; e < 8; ++e) {
        const Row w = row_of(weight_of(*gate, "weight"), e);
        const double dot = std::inner_product(w.begin(), w.end(), z.begin(), 0.0);
        const double ww = std::inner_product(w.begin(), w.end(), w.begin(), 0.0);
        const double zz = std::inner_product(z.begin(), z.end(), z.begin(), 0.0);
        logits.push_back(dot / std::sqrt((ww + 1e-12) * (zz + 1e-12)) / 0.2);
      }
      const Row p = softmax(logits);
      const auto ids = best(p, 2);
      expect_row(routing, t, ids, renormalise ? divided_by_sum(pick(p, ids)) : pick(p, ids));
    }
  }
}

TEST(ExpertChoiceGate, EachExpertTakesItsBestTokensOfASequence) {
  GateOptions o = small_gate(GateKind::kExpertChoice, 8, 1);
  o.capacity_factor = 1.5;
  const auto gate = random_gate(o, 12);
  const TokenBatch batch = random_batch({13, 0, 1, 6}, o.hidden, 13);
  const Routing routing = gate->forward(batch);
  for (std::int64_t s = 0; s < 4; ++s) {
    const std::int64_t begin = batch.sequence_begin(s);
    const std::int64_t n = batch.sequence_begin(s + 1) - begin;
    const auto take = static_cast<std::size_t>(
        std::min<double>(static_cast<double>(n), std::ceil(1.5 * static_cast<double>(n) / 8)));
    std::vector<Row> p;
    for (std::int64_t t = 0; t < n; ++t) {
      p.push_back(softmax(product(weight_of(*gate, "weight"), row_of(batch.x, begin + t))));
    }
    std::vector<std::vector<std::int64_t>> experts(static_cast<std::size_t>(n));
    for (std::size_t e = 0; e < 8 && n > 0; ++e) {
      Row column;
      for (const Row& row : p) {
        column.push_back(row[e]);
      }
      for (const auto t : best(column, take)) {
        experts[static_cast<std::size_t>(t)].push_back(static_cast<std::int64_t>(e));
      }
    }
    for (std::size_t t = 0; t < experts.size(); ++t) {
      std::stable_sort(experts[t].begin(), experts[t].end(), [&](auto a, auto b) {
        return p[t][static_cast<std::size_t>(a)] > p[t][static_cast<std::size_t>(b)];
      });
      Row weights = pick(p[t], experts[t]);
      experts[t].resize(8, -1);
      weights.resize(8, 0.0);
      expect_row(routing, begin + static_cast<std::int64_t>(t), experts[t], weights);
    }
  }
  EXPECT_EQ(routing.statistics.picks_per_expert, std::vector<std::int64_t>(8, 3 + 1 + 2));
}

TEST(SoftMoeGate, MixesTheTokensOfASequenceIntoSlotsAndBack) {
  for (const bool normalise : {false, true}) {
    GateOptions o = small_gate(GateKind::kSoftMoe, 3, 1);
    o.slots_per_expert = 2;
    o.normalise = normalise;
    const auto gate = random_gate(o, 14);
    if (normalise) {
      const at::NoGradGuard guard;
      gate->named_parameters()["scale"].fill_(3.0);
    }
    const TokenBatch batch = random_batch({4, 0, 3}, o.hidden, 15);
    const Routing routing = gate->forward(batch);
    EXPECT_FALSE(routing.ids.defined());
    for (std::int64_t s = 0; s < 3; ++s) {
      const std::int64_t begin = batch.sequence_begin(s);
      const std::int64_t n = batch.sequence_begin(s + 1) - begin;
      std::vector<Row> logits;
      for (std::int64_t t = 0; t < n; ++t) {
        const Row x = row_of(batch.x, begin + t);
        Row row = product(weight_of(*gate, "weight"), x);
        for (std::size_t j = 0; normalise && j < row.size(); ++j) {
          const Row w = row_of(weight_of(*gate, "weight"), static_cast<std::int64_t>(j));
          row[j] *= 3.0 / std::sqrt((std::inner_product(w.begin(), w.end(), w.begin(), 1e-12)) *
                                    (std::inner_product(x.begin(), x.end(), x.begin(), 1e-12)));
        }
        logits.push_back(row);
      }
      for (std::size_t t = 0; t < logits.size(); ++t) {
        const Row combine = softmax(logits[t]);
        for (std::size_t j = 0; j < 6; ++j) {
          Row column;
          for (const Row& row : logits) {
            column.push_back(row[j]);
          }
          const auto token = begin + static_cast<std::int64_t>(t);
          const auto slot = static_cast<std::int64_t>(j);
          EXPECT_NEAR(routing.dispatch[token][slot].item<double>(), softmax(column)[t], 1e-12);
          EXPECT_NEAR(routing.combine[token][slot].item<double>(), combine[j], 1e-12);
        }
      }
    }
    EXPECT_EQ(routing.statistics.picks_per_expert, std::vector<std::int64_t>(3, 4));
  }
}

}  // namespace
}  // namespace coterie::gates
