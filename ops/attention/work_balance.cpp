// SPDX-License-Identifier: Apache-2.0
// AttentionWork: which rank computes which queries against which keys.
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <utility>

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
      may_send_(may_send),
      extents_(extents) {
  if (is_causal_ && may_send_) balance();
}

// A pair stays or is sent as a whole.
int64_t AttentionWork::cheaper_split(int64_t i, int64_t j) const {
  const Interval rows = seeing(i, j);
  if (i == j || !may_send_ || rows.empty()) return rows.begin;
  const double send = static_cast<double>(rows.size()) * (extents_.query + extents_.result);
  return send < static_cast<double>(seen(rows, j).size()) * extents_.keys ? rows.end : rows.begin;
}

Interval AttentionWork::seeing(int64_t i, int64_t j) const {
  const auto [begin, end] = queries_[i];
  if (keys_[j].empty()) return {end, end};
  return {std::min(end, is_causal_ ? std::max(begin, keys_[j].begin) : begin), end};
}

Interval AttentionWork::local_queries(int64_t i, int64_t j) const { return {split(i, j), queries_[i].end}; }

Interval AttentionWork::sent_queries(int64_t i, int64_t j) const { return {seeing(i, j).begin, split(i, j)}; }

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
  pairs_tried_ += size();
  for (int64_t other = 0; other < size(); ++other)
    sum += scores(local_queries(member, other), other) + scores(sent_queries(other, member), member);
  return sum;
}

bool AttentionWork::can_move(int64_t from, int64_t to) const {
  return from != to && !(local_queries(from, to).empty() && sent_queries(to, from).empty());
}

// Queries of `from` are sent to the owner of their keys, or queries sent by `to` go back there. Returns their scores.
double AttentionWork::move(int64_t from, int64_t to, double scores_to_move) {
  for (const bool back : {true, false}) {
    const int64_t i = back ? to : from, j = back ? from : to;
    int64_t& split = split_[i][j];
    const Interval movable = back ? sent_queries(i, j) : local_queries(i, j);
    // The most rows from that end whose scores are not too many.
    const auto moved = [&](int64_t rows) {
      return scores(back ? Interval{split - rows, split} : Interval{split, split + rows}, j);
    };
    int64_t low = 0, high = movable.size();
    while (low < high) {
      const int64_t rows = (low + high + 1) / 2;
      if (moved(rows) <= scores_to_move) {
        low = rows;
      } else {
        high = rows - 1;
      }
    }
    if (low <= 0) continue;
    const double sum = moved(low);
    split += back ? -low : low;
    return sum;
  }
  return 0;
}

std::vector<int64_t> AttentionWork::kinds_of_steps(int64_t i) const {
  std::map<std::array<int64_t, 5>, int64_t> numbers;
  std::vector<int64_t> kinds;
  for (int64_t step = 0; step < size() && !is_causal_; ++step) {
    const int64_t next = (i + step) % size(), previous = (i - step + size()) % size();
    const Interval rows = local_queries(i, next);
    const std::array sizes{rows.size(), seen(rows, next).size(), seen(local_queries(previous, i), i).size(),
                           sent_queries(i, next).size(), sent_queries(previous, i).size()};
    kinds.push_back(numbers.try_emplace(sizes, std::ssize(numbers)).first->second);
  }
  return kinds;
}

// Work moves from the rank with the most that can give to the rank with the least that can take. Scores are whole
// numbers, so loads stay exact while queries move. A rank that found no taker is asked again when its load or that of a
// taker has changed so that it may find one.
void AttentionWork::balance() {
  using Load = std::pair<double, int64_t>;  // of a rank
  std::vector<std::vector<int64_t>> splits(size(), std::vector<int64_t>(size())), takers(size());
  for (int64_t i = 0; i < size(); ++i) {
    for (int64_t j = 0; j < size(); ++j) {
      splits[i][j] = cheaper_split(i, j);
      if (can_move(i, j)) takers[i].push_back(j);
    }
  }
  split_ = std::move(splits);
  std::vector<double> loads;
  std::set<Load, std::greater<>> order;
  for (int64_t i = 0; i < size(); ++i) order.emplace(loads.emplace_back(load(i)), i);
  const double most = order.begin()->first;
  std::vector<char> has_taker(size(), true);
  const auto change_load = [&](int64_t i, double by) {
    order.erase({loads[i], i});
    order.emplace(loads[i] += by, i);
    has_taker[i] = true;
  };
  const auto is_enough = [&](int64_t from, double least) { return (loads[from] - least) * 50 > loads[from]; };
  const auto move_from = [&](int64_t from) {
    for (Load last{-1, -1}; has_taker[from];) {  // the taker with the least, then the next one
      Load next{loads[from], -1};
      pairs_tried_ += static_cast<int64_t>(takers[from].size());
      for (const int64_t one : takers[from]) {
        if (const Load load{loads[one], one}; last < load && load < next) next = load;
      }
      const auto [least, to] = last = next;
      has_taker[from] = is_enough(from, least);
      const double moved = has_taker[from] ? move(from, to, (loads[from] - least) / 2) : 0;
      if (moved == 0) continue;
      if (!can_move(from, to)) std::erase(takers[from], to);
      if (std::find(takers[to].begin(), takers[to].end(), from) == takers[to].end()) takers[to].push_back(from);
      change_load(from, -moved);
      change_load(to, moved);
      pairs_tried_ += size();
      for (int64_t i = 0; i < size(); ++i)
        has_taker[i] = has_taker[i] || (is_enough(i, loads[from]) && can_move(i, from));
      return true;
    }
    return false;
  };
  const auto move_any = [&] {
    for (const auto& [load, from] : order) {
      if (move_from(from)) return true;
    }
    return false;
  };
  for (int64_t turn = 0; turn < 8 * size() * size() && move_any();) ++turn;
  // All wait for the rank with the most work: queries that do not relieve it are not worth sending.
  if (order.begin()->first > 0.95 * most) split_.clear();
}

}  // namespace moonhalo
