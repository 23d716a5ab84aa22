// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/message_purpose.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "moonhalo/engine/forecast/rank_kinds.h"

namespace moonhalo {
namespace {

constexpr double kWorthwhile = 0.9;  // of the bytes of edges

int64_t bytes_of(const std::vector<TapePart>& parts) {
  int64_t bytes = 0;
  for (const TapePart& part : parts) bytes += part.bytes;
  return bytes;
}

bool reaches_all(const TapeExchange& exchange, int64_t ranks) {
  return std::ssize(exchange.sends) == ranks - 1 && std::ssize(exchange.receives) == ranks - 1;
}

bool are_equal(const std::vector<TapePart>& parts) {
  return std::all_of(parts.begin(), parts.end(), [&](const TapePart& one) { return one.bytes == parts[0].bytes; });
}

// fully_shard sends a rank's block to all others, and receives as much from each that adds to the block's gradient.
// Rows of even blocks that move look the same, but not edges and corners.
bool may_be_of_parameters(const TapeExchange& exchange, int64_t ranks) {
  return reaches_all(exchange, ranks) && (are_equal(exchange.sends) || are_equal(exchange.receives));
}

// Finds sums of gradients: each rank gets the addends of its part by an exchange with all the others, and its sums are
// gathered later.
class GradientSums {
 public:
  explicit GradientSums(const Tape& tape) : tape_(tape) {
    for (const TapeEvent& event : tape.events) {
      const auto* exchange = std::get_if<TapeExchange>(&event.what);
      if (exchange == nullptr) continue;
      const int64_t ranks = tape.groups.at(exchange->group).size();
      if (ranks < 2 || !reaches_all(*exchange, ranks)) continue;
      scattered_.emplace(exchange->group, whole_bytes(*exchange, ranks));
    }
    for (const TapeEvent& event : tape.events) {
      const auto* gather = std::get_if<TapeVerb>(&event.what);
      if (gather != nullptr && gather->verb == Verb::kAllGather) gathered_.emplace(gather->group, gather->data);
    }
  }

  bool has(const TapeExchange& exchange) const {
    const int64_t ranks = tape_.groups.at(exchange.group).size();
    return ranks > 1 && reaches_all(exchange, ranks) &&
           gathered_.contains({exchange.group, whole_bytes(exchange, ranks)});
  }
  bool has(const TapeVerb& gather) const { return scattered_.contains({gather.group, gather.data}); }

 private:
  // The parts of the others, and one's own, of which each other rank sends addends.
  static int64_t whole_bytes(const TapeExchange& exchange, int64_t ranks) {
    return bytes_of(exchange.sends) + bytes_of(exchange.receives) / (ranks - 1);
  }

  const Tape& tape_;
  std::set<std::pair<uint32_t, int64_t>> scattered_, gathered_;  // group and bytes of the whole
};

// In these parts of a step all sums are of gradients.
bool is_of_gradients(Phase phase) { return phase == Phase::kBackward || phase == Phase::kOptimizer; }

Purpose purpose_of_gather(const TapeVerb& gather, Phase phase, const TapeVerb* before, const GradientSums& sums) {
  const bool halves = before != nullptr && before->verb == Verb::kReduceScatter && before->data == gather.data;
  if (halves) return Purpose::kSum;
  // In one round of messages all ranks send all addends of a small sum.
  return is_of_gradients(phase) || sums.has(gather) ? Purpose::kGradients : Purpose::kGather;
}

// The mesh dims along which two ranks differ, if they are beside each other, around the ends of a mesh dim as well.
std::optional<std::vector<size_t>> dims_between(int64_t rank, int64_t other, const std::vector<int64_t>& mesh) {
  const std::vector<int64_t> a = grid_coordinates(rank, mesh), b = grid_coordinates(other, mesh);
  std::vector<size_t> dims;
  for (size_t d = 0; d < mesh.size(); ++d) {
    const int64_t steps = std::abs(a[d] - b[d]);
    if (std::min(steps, mesh[d] - steps) > 1) return std::nullopt;
    if (steps > 0) dims.push_back(d);
  }
  return dims;
}

// The bytes that a rank sends to one neighbour along each mesh dim; 0 where it sends nothing along it.
std::vector<double> edges_of(const Tape& tape, const std::vector<int64_t>& mesh) {
  const std::vector<Purpose> purposes = purposes_of(tape);
  std::vector<double> bytes(mesh.size());
  std::vector<std::set<int32_t>> neighbours(mesh.size());
  for (size_t i = 0; i < tape.events.size(); ++i) {
    const auto* exchange = std::get_if<TapeExchange>(&tape.events[i].what);
    if (exchange == nullptr || purposes[i] != Purpose::kExchange) continue;
    if (bytes_sent_far(tape, *exchange, mesh) > 0) continue;  // blocks that move
    for (const TapePart& part : exchange->sends) {
      const auto along = dims_between(tape.rank, tape.rank + part.offset, mesh);
      if (!along || along->size() != 1) continue;  // nothing is sent far, and corners are small
      bytes[along->front()] += static_cast<double>(part.bytes);
      neighbours[along->front()].insert(part.offset);
    }
  }
  for (size_t d = 0; d < mesh.size(); ++d) bytes[d] /= std::max<double>(1, static_cast<double>(neighbours[d].size()));
  return bytes;
}

// Bytes of all edges of an inner rank, if `sizes` ranks cut dims that `mesh` ranks cut now.
double sent_bytes(const std::vector<double>& edges, const std::vector<int64_t>& mesh,
                  const std::vector<int64_t>& sizes) {
  double bytes = 0;
  for (size_t d = 0; d < mesh.size(); ++d) {
    double edge = edges[d];
    for (size_t other = 0; other < mesh.size(); ++other) {
      if (other != d) edge *= static_cast<double>(mesh[other]) / static_cast<double>(sizes[other]);
    }
    bytes += edge * static_cast<double>(std::min<int64_t>(2, sizes[d] - 1));
  }
  return bytes;
}

}  // namespace

std::vector<Purpose> purposes_of(const Tape& tape) {
  const GradientSums sums(tape);
  std::vector<Purpose> purposes(tape.events.size(), Purpose::kNone);
  std::map<uint32_t, const TapeVerb*> before;  // the last verb of each group
  for (size_t i = 0; i < tape.events.size(); ++i) {
    const TapeEvent& event = tape.events[i];
    if (const auto* exchange = std::get_if<TapeExchange>(&event.what)) {
      if (!exchange->counted) continue;
      const int64_t ranks = tape.groups.at(exchange->group).size();
      const bool optimizer_sums = event.phase == Phase::kOptimizer && reaches_all(*exchange, ranks);
      purposes[i] = sums.has(*exchange)                                                 ? Purpose::kGradients
                    : tape.gathers_parameters && may_be_of_parameters(*exchange, ranks) ? Purpose::kParametersOrRows
                    : optimizer_sums                                                    ? Purpose::kGradients
                                                                                        : Purpose::kExchange;
    } else if (const auto* verb = std::get_if<TapeVerb>(&event.what)) {
      if (!verb->counted) continue;
      const TapeVerb*& last = before[verb->group];
      purposes[i] = verb->verb == Verb::kAllGather   ? purpose_of_gather(*verb, event.phase, last, sums)
                    : verb->verb != Verb::kAllReduce ? Purpose::kOther
                    : is_of_gradients(event.phase)   ? Purpose::kGradients
                                                     : Purpose::kSum;
      last = verb;
    }
  }
  return purposes;
}

int64_t bytes_sent_far(const Tape& tape, const TapeExchange& exchange, const std::vector<int64_t>& mesh) {
  if (mesh.empty()) return 0;
  int64_t beside = 1, far = 0;  // ranks within one step of a rank, itself too
  for (const int64_t size : mesh) beside *= std::min<int64_t>(size, 3);
  const bool to_more = std::ssize(exchange.sends) >= beside;
  for (const TapePart& part : exchange.sends) {
    if (to_more || !dims_between(tape.rank, tape.rank + part.offset, mesh)) far += part.bytes;
  }
  return far;
}

std::optional<ShorterEdges> shorter_edges(const Tape& tape, const std::vector<int64_t>& mesh) {
  const std::vector<double> edges = edges_of(tape, mesh);
  std::vector<size_t> dims;  // along which edges are sent
  int64_t ranks = 1;
  for (size_t d = 0; d < mesh.size(); ++d) {
    if (edges[d] <= 0) continue;
    dims.push_back(d);
    ranks *= mesh[d];
  }
  if (dims.size() < 2) return std::nullopt;
  const double now = sent_bytes(edges, mesh, mesh);
  ShorterEdges best{mesh, 1};
  std::vector<int64_t> sizes = mesh;
  const std::function<void(size_t, int64_t)> divide = [&](size_t i, int64_t left) {
    if (i + 1 == dims.size()) {
      sizes[dims[i]] = left;
      const double share = sent_bytes(edges, mesh, sizes) / now;
      if (share < best.share) best = {sizes, share};
      return;
    }
    for (int64_t size = 1; size <= left; ++size) {
      if (left % size != 0) continue;
      sizes[dims[i]] = size;
      divide(i + 1, left / size);
    }
  };
  divide(0, ranks);
  if (best.share > kWorthwhile) return std::nullopt;
  return best;
}

std::string edges_remedy(const Tape& tape, const RankTapes& tapes) {
  const auto shorter = shorter_edges(tape, tapes.mesh);
  if (!shorter) return "fewer ranks along the dims that are cut: edges are then a smaller part of the blocks";
  char share[24];
  std::snprintf(share, sizeof share, "%.0f %%", 100 * shorter->share);
  return "make the mesh " + mesh_sizes_text(shorter->mesh, tapes.mesh_dims) + ": edges of blocks then have " + share +
         " of the bytes";
}

std::string mesh_sizes_text(const std::vector<int64_t>& mesh, const std::vector<std::string>& names) {
  std::string text;
  for (size_t d = 0; d < mesh.size(); ++d) text += (d > 0 ? " x " : "") + names.at(d) + " " + std::to_string(mesh[d]);
  return text;
}

}  // namespace moonhalo
