// SPDX-License-Identifier: Apache-2.0
// AttentionWork: which rank computes which queries against which keys.
#include <algorithm>
#include <numeric>

#include "moonhalo/ops/attention/specs.h"

namespace moonhalo {
namespace {

// Scores of the queries before `query` with `keys` keys from `key` on, under causality.
double causal_scores(int64_t query, int64_t key, int64_t keys) {
  const auto rows = static_cast<double>(std::max<int64_t>(0, query - key)), all = static_cast<double>(keys);
  return rows <= all ? rows * (rows + 1) / 2 : all * (all + 1) / 2 + (rows - all) * all;
}

}  // namespace

AttentionWork::AttentionWork(std::vector<Interval> queries, std::vector<Interval> keys, bool is_causal, bool may_send,
                             Extents extents)
    : queries_(std::move(queries)),
      keys_(std::move(keys)),
      is_causal_(is_causal),
      split_(size(), std::vector<int64_t>(size())) {
  for (int64_t i = 0; i < size(); ++i) {
    for (int64_t j = 0; j < size(); ++j) {
      const Interval rows = seeing(i, j);
      split_[i][j] = rows.begin;
      if (i == j || !may_send || rows.empty()) continue;
      const Interval needed = seen(rows, j);
      const double send = static_cast<double>(rows.size()) * (extents.query + extents.result);
      if (send < static_cast<double>(needed.size()) * extents.keys) split_[i][j] = rows.end;
    }
  }
  if (is_causal_ && may_send) balance();
}

Interval AttentionWork::seeing(int64_t i, int64_t j) const {
  const auto [begin, end] = queries_[i];
  if (keys_[j].empty()) return {end, end};
  return {std::min(end, is_causal_ ? std::max(begin, keys_[j].begin) : begin), end};
}

Interval AttentionWork::local_queries(int64_t i, int64_t j) const { return {split_[i][j], queries_[i].end}; }

Interval AttentionWork::sent_queries(int64_t i, int64_t j) const { return {seeing(i, j).begin, split_[i][j]}; }

Interval AttentionWork::seen(const Interval& rows, int64_t j) const {
  const auto [begin, end] = keys_[j];
  if (rows.empty()) return {begin, begin};
  return {begin, is_causal_ ? std::max(begin, std::min(end, rows.end)) : end};
}

double AttentionWork::scores(const Interval& rows, int64_t j) const {
  if (rows.empty()) return 0;
  const int64_t keys = keys_[j].size();
  if (!is_causal_) return static_cast<double>(rows.size()) * static_cast<double>(keys);
  return causal_scores(rows.end, keys_[j].begin, keys) - causal_scores(rows.begin, keys_[j].begin, keys);
}

double AttentionWork::load(int64_t member) const {
  double sum = 0;
  for (int64_t other = 0; other < size(); ++other)
    sum += scores(local_queries(member, other), other) + scores(sent_queries(other, member), member);
  return sum;
}

// Queries of `from` are sent to the owner of their keys, or queries sent by `to` go back there.
bool AttentionWork::move(int64_t from, int64_t to, double scores_to_move) {
  for (const bool back : {true, false}) {
    const int64_t i = back ? to : from, j = back ? from : to;
    int64_t& split = split_[i][j];
    const Interval movable = back ? sent_queries(i, j) : local_queries(i, j);
    // The most rows from that end whose scores are not too many.
    int64_t low = 0, high = movable.size();
    while (low < high) {
      const int64_t rows = (low + high + 1) / 2;
      const Interval moved = back ? Interval{split - rows, split} : Interval{split, split + rows};
      if (scores(moved, j) <= scores_to_move) {
        low = rows;
      } else {
        high = rows - 1;
      }
    }
    if (low <= 0) continue;
    split += back ? -low : low;
    return true;
  }
  return false;
}

void AttentionWork::balance() {
  const auto before = split_;
  const auto loads_of_all = [&] {
    std::vector<double> loads;
    for (int64_t i = 0; i < size(); ++i) loads.push_back(load(i));
    return loads;
  };
  std::vector<double> loads = loads_of_all();
  const double most = *std::max_element(loads.begin(), loads.end());
  std::vector<int64_t> order(size());
  bool moved = true;
  for (int64_t turn = 0; moved && turn < 8 * size() * size(); ++turn, loads = loads_of_all()) {
    std::iota(order.begin(), order.end(), int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return loads[a] < loads[b]; });
    // Work moves from the rank with the most that can give to the rank with the least that can take.
    moved = false;
    for (int64_t b = size() - 1; b > 0 && !moved; --b) {
      for (int64_t a = 0; a < b && !moved; ++a) {
        const double gap = loads[order[b]] - loads[order[a]];
        if (gap * 50 > loads[order[b]]) moved = move(order[b], order[a], gap / 2);
      }
    }
  }
  // All wait for the rank with the most work: queries that do not relieve it are not worth sending.
  if (*std::max_element(loads.begin(), loads.end()) > 0.95 * most) split_ = before;
}

}  // namespace moonhalo
