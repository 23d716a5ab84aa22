// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/rank_shares.h"

#include <algorithm>
#include <utility>

#include "moonhalo/engine/base/splitmix.h"
#include "moonhalo/engine/exchange/exchange_context.h"

namespace moonhalo {
namespace {

constexpr int64_t kMostPairs = int64_t{1} << 24;  // of ranks that are looked at: a second

int64_t common_elements(const Box& one, const Box& other) {
  int64_t elements = 1;
  for (int64_t dim = 0; dim < std::min(one.ndim(), other.ndim()) && elements > 0; ++dim)
    elements *= one[dim].intersect(other[dim]).size();
  return std::max<int64_t>(elements, 0);
}

/// Sums over all rounds of a rank.
struct Moved {
  int64_t messages = 0, sent = 0, held = 0, largest = 0, needed = 0;

  int64_t number() const {
    uint64_t hash = 0;
    for (const int64_t count : {messages, sent, held, largest, needed})
      hash = splitmix64(hash ^ static_cast<uint64_t>(count));
    return static_cast<int64_t>(hash >> 1);
  }
};

std::vector<std::pair<int64_t, Box>> boxes_of(int64_t ranks, const std::function<Box(int64_t rank)>& box_of) {
  std::vector<std::pair<int64_t, Box>> boxes;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    Box box = box_of(rank);
    if (!box.empty()) boxes.emplace_back(rank, std::move(box));
  }
  return boxes;
}

std::vector<int64_t> numbers_of(int64_t ranks, const MovedBoxes& moved) {
  std::vector<Moved> all(static_cast<size_t>(ranks));
  int64_t pairs = 0;
  for (int64_t round = 0; round < moved.rounds && pairs <= kMostPairs; ++round) {
    const auto from = boxes_of(ranks, [&](int64_t rank) { return moved.from(round, rank); }),
               to = boxes_of(ranks, [&](int64_t rank) { return moved.to(round, rank); });
    for (const auto& [rank, box] : from) {
      all[rank].held += box.numel();
      all[rank].largest = std::max(all[rank].largest, box.numel());
    }
    for (const auto& [rank, box] : to) all[rank].needed += box.numel();
    pairs += std::ssize(from) * std::ssize(to);
    if (pairs > kMostPairs) break;
    for (const auto& [owner, held] : from) {
      for (const auto& [user, needed] : to) {
        const int64_t elements = owner == user ? 0 : common_elements(held, needed);
        if (elements == 0 || !moved.serves(owner, user)) continue;
        ++all[owner].messages;
        all[owner].sent += elements;
      }
    }
  }
  std::vector<int64_t> numbers;
  for (const Moved& one : all) numbers.push_back(one.number());
  return numbers;
}

}  // namespace

SharesWatch watch_shares(SharesWatch watch) { return std::exchange(exchange_context->shares_watch, std::move(watch)); }

void note_shares(const DeviceMesh* mesh, int64_t rank, const std::function<std::vector<int64_t>()>& make) {
  if (rank == 0 && exchange_context->shares_watch) exchange_context->shares_watch(mesh, make());
}

void note_moved_boxes(const DeviceMesh& mesh, const MovedBoxes& moved) {
  note_shares(&mesh, mesh.rank(), [&] { return numbers_of(mesh.size(), moved); });
}

}  // namespace moonhalo
