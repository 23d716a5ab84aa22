// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/message_cause.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>
#include <utility>

#include "moonhalo/engine/forecast/rank_kinds.h"

namespace moonhalo {
namespace {

constexpr double kWorthwhile = 0.9;  // of the bytes of edges

MessageCause cause_of(Traffic traffic, Verb verb) {
  if (traffic == Traffic::kOther) return {traffic, verb};
  if (traffic != Traffic::kInputs && traffic != Traffic::kRedistribute) return {traffic};
  // Blocks move by these two alone: an all_gather is the second half of a sum.
  const bool moves = verb == Verb::kExchange || verb == Verb::kAllToAll;
  return {moves ? Traffic::kRedistribute : Traffic::kAllReduce};
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
  std::vector<double> bytes(mesh.size());
  std::vector<std::set<int32_t>> neighbours(mesh.size());
  for (const TapeEvent& event : tape.events) {
    const auto* exchange = std::get_if<TapeExchange>(&event.what);
    if (exchange == nullptr || exchange->traffic != Traffic::kHalo) continue;
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

// True if most bytes of halos go to ranks that are not beside this one: no other mesh would make edges of them.
bool halos_reach_far(const Tape& tape, const std::vector<int64_t>& mesh) {
  int64_t all = 0, far = 0;
  for (const TapeEvent& event : tape.events) {
    const auto* exchange = std::get_if<TapeExchange>(&event.what);
    if (exchange == nullptr || exchange->traffic != Traffic::kHalo) continue;
    for (const TapePart& part : exchange->sends) all += part.bytes;
    far += bytes_sent_far(tape, *exchange, mesh);
  }
  return 2 * far > all;
}

// Another mesh of the same ranks, or fewer ranks.
std::string edges_remedy(const Tape& tape, const RankTapes& tapes) {
  const auto shorter = shorter_edges(tape, tapes.mesh);
  if (!shorter) return "fewer ranks along the dims that are cut: edges are then a smaller part of the blocks";
  char share[24];
  std::snprintf(share, sizeof share, "%.0f %%", 100 * shorter->share);
  return "make the mesh " + mesh_sizes_text(shorter->mesh, tapes.mesh_dims) + ": edges of blocks then have " + share +
         " of the bytes";
}

}  // namespace

MessageCause cause_of(const TapeVerb& call) { return cause_of(call.traffic, call.verb); }
MessageCause cause_of(const TapeExchange& call) { return cause_of(call.traffic, Verb::kExchange); }

CauseText text_of(const MessageCause& cause, const Tape& tape, const RankTapes& tapes) {
  const std::string one_cut = "keep one cut from layer to layer, so that fewer blocks are moved",
                    one_host = "put this mesh dim on ranks of one host";
  const CauseText moved{"blocks that move to other ranks", one_cut, one_cut};
  switch (cause.traffic) {
    case Traffic::kInputs:
    case Traffic::kRedistribute:
      return moved;
    case Traffic::kHalo:
      if (halos_reach_far(tape, tapes.mesh)) return moved;
      return {"edges of blocks",
              "use fewer ranks along the dims that are cut, or blocks that fetch wider halos less often",
              edges_remedy(tape, tapes)};
    case Traffic::kAllReduce:
      return {"sums", fewer_sums_remedy(tape), one_host};
    case Traffic::kRing:
      return {"blocks that pass from rank to rank", "use fewer ranks along the dim that is cut",
              one_host + ", or use fewer ranks along it"};
    case Traffic::kDataDependent:
      return {"rows at given indices", "look up more rows in one call",
              "keep the tensor of these rows whole on each rank, if it is small"};
    case Traffic::kGradients:
      return {"sums of gradients",
              tape.gathers_parameters ? "make units of fully_shard larger, so that more gradients are in one message"
                                      : "replicate the module: many gradients are then added up in one sum",
              "more samples on each rank between two steps, or " + one_host};
    case Traffic::kParameters:
      return {"parameters of fully_shard",
              "make units of fully_shard larger, so that more parameters are in one message",
              "fully_shard with reshard_after_forward = false gathers once a step; or keep parameters whole within a "
              "host, and store them in blocks only over the hosts"};
    case Traffic::kStages:
      return {"tensors between stages of a pipeline", "use fewer stages, or fewer and larger micro-batches",
              "divide the model into stages where less is passed on, or use fewer of them"};
    case Traffic::kDistribute: {
      const std::string once = "make them once, before the steps, or let each rank read its own block";
      return {"tensors that become ShardTensors", once, once};
    }
    case Traffic::kNone:
    case Traffic::kOther:
      break;
  }
  const std::string seldom = "call it before the steps, or not in every step";
  return {name(cause.verb), seldom, seldom};
}

std::string fewer_sums_remedy(const Tape& tape) {
  int64_t in_modules = 0, all = 0;
  for (const TapeEvent& event : tape.events) {
    const auto* call = std::get_if<TapeVerb>(&event.what);
    if (call == nullptr || !call->counted || cause_of(*call).traffic != Traffic::kAllReduce) continue;
    ++all;
    in_modules += event.module != 0 ? 1 : 0;
  }
  if (2 * in_modules > all)
    return "fewer ranks along the mesh dim that cuts what these modules add up, or modules that add up dims that are "
           "not cut: each needs its sum before it goes on, so none can be put together";
  return "add up what several calls give in one sum, or call them in fewer steps";
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

std::string mesh_sizes_text(const std::vector<int64_t>& mesh, const std::vector<std::string>& names) {
  std::string text;
  for (size_t d = 0; d < mesh.size(); ++d) text += (d > 0 ? " x " : "") + names.at(d) + " " + std::to_string(mesh[d]);
  return text;
}

}  // namespace moonhalo
