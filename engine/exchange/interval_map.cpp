// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/interval_map.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "moonhalo/engine/exchange/boundary_index.h"

namespace moonhalo {
namespace {

// A run of needed positions [target, target + length) that read the domain's [begin, begin + length), maybe backwards.
struct Piece {
  int64_t target, begin, length;
  bool reversed;
};

// The in-domain runs of one need. What has no piece lies outside the domain (Edge::kZero).
std::vector<Piece> pieces_of(const Need& need, int64_t extent) {
  std::vector<Piece> pieces;
  const int64_t length = need.end - need.begin;
  TORCH_INTERNAL_ASSERT(length >= 0, "a need ends before it begins");
  if (extent == 0) return pieces;
  for (int64_t i = need.begin; i < need.end;) {
    Piece piece{i - need.begin, i, 0, false};
    if (i >= 0 && i < extent) {
      piece.length = std::min(need.end, extent) - i;
    } else if (need.edge == Edge::kZero) {
      if (i >= extent) break;
      i = std::min<int64_t>(need.end, 0);
      continue;
    } else {  // as far as the rows go on from there: upwards, downwards (mirrored), or not at all
      piece.begin = source_row(i, extent, need.edge);
      const int64_t step = source_row(i + 1, extent, need.edge) - piece.begin, wanted = need.end - i;
      if (step == -1) {
        piece.length = std::min(wanted, piece.begin);  // row 0 belongs to the next run
        piece.begin -= piece.length - 1;
        piece.reversed = piece.length > 1;
      } else {
        piece.length = step == 1 ? std::min(wanted, extent - piece.begin) : 1;
      }
    }
    pieces.push_back(piece);
    i += piece.length;
  }
  if (need.reversed) {
    for (Piece& piece : pieces) {
      piece.target = length - piece.target - piece.length;
      piece.reversed = piece.length > 1 && !piece.reversed;
    }
  }
  return pieces;
}

// Where pieces meet one owned block: positions local to both.
struct Overlap {
  int64_t source, target, length;
  bool reversed;
};

std::vector<Overlap> overlaps(const std::vector<Piece>& pieces, std::pair<int64_t, int64_t> owned) {
  std::vector<Overlap> result;
  for (const Piece& piece : pieces) {
    const int64_t lo = std::max(piece.begin, owned.first);
    const int64_t hi = std::min(piece.begin + piece.length, owned.second);
    if (lo >= hi) continue;
    const int64_t skipped = piece.reversed ? piece.begin + piece.length - hi : lo - piece.begin;
    result.push_back({lo - owned.first, piece.target + skipped, hi - lo, piece.reversed});
  }
  return result;
}

bool inside(const std::vector<Piece>& pieces, std::pair<int64_t, int64_t> owned) {
  return std::all_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
    return owned.first <= piece.begin && piece.begin + piece.length <= owned.second;
  });
}

bool meet(const std::vector<Piece>& pieces, std::pair<int64_t, int64_t> owned) {
  return std::any_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
    return std::max(piece.begin, owned.first) < std::min(piece.begin + piece.length, owned.second);
  });
}

}  // namespace

Ownership Ownership::of(const SpecPtr& spec) {
  std::vector<bool> cutting(spec->mesh()->ndim(), false);
  for (int64_t d = 0; d < spec->ndim(); ++d) {
    for (const int64_t m : spec->cut(d).mesh_dims) cutting[m] = true;
  }
  const auto owned = [spec](int64_t rank) {
    Ranges box;
    for (int64_t d = 0; d < spec->ndim(); ++d) box.push_back(spec->block_range(d, rank));
    return box;
  };
  const auto serves = [mesh = spec->mesh(), cutting = std::move(cutting)](int64_t owner, int64_t user) {
    for (int64_t m = 0; m < mesh->ndim(); ++m) {
      if (!cutting[m] && mesh->coordinate(owner, m) != mesh->coordinate(user, m)) return false;
    }
    return true;
  };
  return {spec->mesh(), spec->global_shape(), owned, serves};
}

IntervalMap::IntervalMap(const SpecPtr& from, const std::function<std::vector<Need>(int64_t)>& needs)
    : IntervalMap(Ownership::of(from), needs) {
  if (!exchanges_) return;
  auto key = std::make_shared<Key>();
  key->from = from;
  for (int64_t rank = 0; rank < mesh_->size(); ++rank) {
    const std::vector<Need> wanted = needs(rank);
    for (int64_t d = 0; d < from->ndim(); ++d) {
      const Need& need = wanted[d];
      if (!need.reversed && std::pair(need.begin, need.end) == from->block_range(d, rank)) continue;
      key->needs.insert(key->needs.end(), {rank * from->ndim() + d, need.begin, need.end,
                                           2 * static_cast<int64_t>(need.edge) + need.reversed});
    }
  }
  key_ = std::move(key);
}

IntervalMap::IntervalMap(const Ownership& from, const std::function<std::vector<Need>(int64_t)>& needs)
    : mesh_(from.mesh) {
  const int64_t me = mesh_->rank(), ranks = mesh_->size(), ndim = static_cast<int64_t>(from.global_shape.size());
  std::vector<Ranges> owned;
  for (int64_t rank = 0; rank < ranks; ++rank) owned.push_back(from.owned(rank));
  using Pieces = std::vector<std::vector<Piece>>;  // per dim
  const auto pieces_for = [&](int64_t rank) {
    const std::vector<Need> need = needs(rank);
    TORCH_INTERNAL_ASSERT(static_cast<int64_t>(need.size()) == ndim, "one need per dim");
    Pieces pieces;
    for (int64_t d = 0; d < ndim; ++d) pieces.push_back(pieces_of(need[d], from.global_shape[d]));
    return pieces;
  };
  const auto all_dims = [&](const auto& holds, const Pieces& pieces, int64_t owner) {
    for (int64_t d = 0; d < ndim; ++d) {
      if (!holds(pieces[d], owned[owner][d])) return false;
    }
    return true;
  };
  // All copies from `owner` to a user, the last dim varying fastest: the same order on both of them.
  const auto copies_between = [&](int64_t owner, const Pieces& pieces) {
    std::vector<Copy> copies;
    std::vector<std::vector<Overlap>> found(ndim);
    for (int64_t d = 0; d < ndim; ++d) {
      found[d] = overlaps(pieces[d], owned[owner][d]);
      if (found[d].empty()) return copies;
    }
    std::vector<size_t> at(ndim, 0);
    for (bool more = true; more;) {
      Copy copy;
      copy.numel = 1;
      for (int64_t d = 0; d < ndim; ++d) {
        const Overlap& o = found[d][at[d]];
        copy.source.push_back(o.source);
        copy.target.push_back(o.target);
        copy.length.push_back(o.length);
        if (o.reversed) copy.flips.push_back(d);
        copy.numel *= o.length;
      }
      copies.push_back(std::move(copy));
      more = false;
      for (int64_t d = ndim - 1; d >= 0 && !more; --d) {
        more = ++at[d] < found[d].size();
        if (!more) at[d] = 0;
      }
    }
    return copies;
  };
  const auto total = [](const std::vector<Copy>& copies) {
    int64_t numel = 0;
    for (const Copy& copy : copies) numel += copy.numel;
    return numel;
  };

  // Who sends and receives nothing still takes part in the exchange, if there is one: every rank makes the same calls.
  for (int64_t user = 0; user < ranks && !exchanges_; ++user) {
    const Pieces pieces = pieces_for(user);
    if (from.serves(user, user) && all_dims(inside, pieces, user)) continue;
    for (int64_t owner = 0; owner < ranks && !exchanges_; ++owner) {
      exchanges_ = owner != user && from.serves(owner, user) && all_dims(meet, pieces, owner);
    }
  }
  for (const auto& [begin, end] : owned[me]) owned_shape_.push_back(end - begin);
  for (const Need& need : needs(me)) needed_shape_.push_back(need.end - need.begin);
  const Pieces my_pieces = pieces_for(me);
  int64_t written = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (rank == me || exchanges_) {
      std::vector<Copy> copies;
      if (from.serves(rank, me)) copies = copies_between(rank, my_pieces);
      const int64_t numel = total(copies);
      written += numel;
      if (rank == me) {
        local_ = std::move(copies);
      } else if (numel > 0) {
        receives_.push_back({static_cast<int>(rank), std::move(copies), numel});
      }
    }
    if (rank != me && exchanges_ && from.serves(me, rank)) {
      auto copies = copies_between(me, pieces_for(rank));
      const int64_t numel = total(copies);
      if (numel > 0) sends_.push_back({static_cast<int>(rank), std::move(copies), numel});
      elements_sent_ += numel;
    }
  }
  const int64_t needed = c10::multiply_integers(needed_shape_);
  covered_ = written == needed;
  identity_ = receives_.empty() && needed_shape_ == owned_shape_ && covered_ &&
              (needed == 0 || (local_.size() == 1 && local_[0].flips.empty()));
}

at::Tensor IntervalMap::region(const at::Tensor& tensor, at::IntArrayRef start, at::IntArrayRef length) {
  at::Tensor result = tensor;
  for (size_t d = 0; d < start.size(); ++d) {
    if (length[d] != result.size(d)) result = result.narrow(d, start[d], length[d]);
  }
  return result;
}

at::Tensor IntervalMap::source_part(const at::Tensor& owned, const Copy& copy) {
  const at::Tensor part = region(owned, copy.source, copy.length);
  return copy.flips.empty() ? part : part.flip(copy.flips);
}

at::Tensor IntervalMap::target_part(const at::Tensor& needed, const Copy& copy) {
  return region(needed, copy.target, copy.length);
}

int64_t IntervalMap::elements_received() const {
  int64_t received = 0;
  for (const Transfer& transfer : receives_) received += transfer.numel;
  return received;
}

}  // namespace moonhalo
