// SPDX-License-Identifier: Apache-2.0
#include "engine/interval_map.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>

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
    } else if (need.edge == Edge::kReplicate) {
      piece.begin = i < 0 ? 0 : extent - 1;
      piece.length = 1;
    } else if (need.edge == Edge::kCircular) {
      piece.begin = ((i % extent) + extent) % extent;
      piece.length = std::min(need.end - i, extent - piece.begin);
    } else {  // reflect: the domain read forth and back, its end rows once
      const int64_t period = std::max<int64_t>(1, 2 * (extent - 1));
      const int64_t phase = ((i % period) + period) % period;
      if (phase < extent) {
        piece.begin = phase;
        piece.length = std::min(need.end - i, extent == 1 ? 1 : extent - phase);
      } else {
        const int64_t first = period - phase;  // read downwards from here, row 0 belongs to the next run
        piece.length = std::min(need.end - i, first);
        piece.begin = first - piece.length + 1;
        piece.reversed = piece.length > 1;
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

}  // namespace

IntervalMap::IntervalMap(SpecPtr from, const std::function<std::vector<Need>(int64_t)>& needs) : from_(std::move(from)) {
  const DeviceMesh& mesh = *from_->mesh();
  const int64_t me = mesh.rank(), ndim = from_->ndim();
  std::vector<bool> cutting(mesh.ndim(), false);
  for (int64_t d = 0; d < ndim; ++d) {
    for (const int64_t m : from_->cut(d).mesh_dims) cutting[m] = true;
  }
  const auto serves = [&](int64_t owner, int64_t user) {
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      if (!cutting[m] && mesh.coordinate(owner, m) != mesh.coordinate(user, m)) return false;
    }
    return true;
  };
  const auto pieces_for = [&](int64_t rank) {
    const std::vector<Need> need = needs(rank);
    TORCH_INTERNAL_ASSERT(static_cast<int64_t>(need.size()) == ndim, "one need per dim");
    std::vector<std::vector<Piece>> pieces;
    for (int64_t d = 0; d < ndim; ++d) pieces.push_back(pieces_of(need[d], from_->global_shape()[d]));
    return pieces;
  };
  // All copies from `owner` to `user`, the last dim varying fastest: the same order on both of them.
  const auto copies_between = [&](int64_t owner, const std::vector<std::vector<Piece>>& pieces) {
    std::vector<Copy> copies;
    std::vector<std::vector<Overlap>> found(ndim);
    for (int64_t d = 0; d < ndim; ++d) {
      found[d] = overlaps(pieces[d], from_->block_range(d, owner));
      if (found[d].empty()) return copies;
    }
    std::vector<size_t> at(ndim, 0);
    for (bool more = true; more;) {
      Copy copy;
      copy.numel = 1;
      for (int64_t d = 0; d < ndim; ++d) {
        const Overlap& o = found[d][at[d]];
        copy.source.start.push_back(o.source);
        copy.target.start.push_back(o.target);
        copy.source.length.push_back(o.length);
        copy.target.length.push_back(o.length);
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

  // Who sends and receives nothing still takes part in the exchange, if there is one: every rank makes the same calls.
  for (int64_t rank = 0; rank < mesh.size() && !exchanges_; ++rank) {
    const std::vector<Need> need = needs(rank);
    bool same = true, nothing = false;
    for (int64_t d = 0; d < ndim; ++d) {
      same &= std::pair(need[d].begin, need[d].end) == from_->block_range(d, rank) && !need[d].reversed;
      nothing |= need[d].begin == need[d].end;
    }
    exchanges_ = !same && !nothing;
  }
  for (const Need& need : needs(me)) needed_shape_.push_back(need.end - need.begin);
  const auto my_pieces = pieces_for(me);
  int64_t written = 0;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    if (serves(rank, me)) {
      auto copies = copies_between(rank, my_pieces);
      int64_t numel = 0;
      for (const Copy& copy : copies) numel += copy.numel;
      written += numel;
      if (rank == me) {
        local_ = std::move(copies);
      } else if (numel > 0) {
        receives_.push_back({static_cast<int>(rank), std::move(copies), numel});
      }
    }
    if (rank != me && serves(me, rank)) {
      auto copies = copies_between(me, pieces_for(rank));
      int64_t numel = 0;
      for (const Copy& copy : copies) numel += copy.numel;
      if (numel > 0) sends_.push_back({static_cast<int>(rank), std::move(copies), numel});
      elements_sent_ += numel;
    }
  }
  const int64_t needed = c10::multiply_integers(needed_shape_);
  covered_ = written == needed;
  identity_ = receives_.empty() && needed_shape_ == from_->local_shape() && covered_ &&
              (needed == 0 || (local_.size() == 1 && local_[0].flips.empty()));
}

at::Tensor IntervalMap::view(const at::Tensor& tensor, const Box& box) {
  at::Tensor result = tensor;
  for (size_t d = 0; d < box.start.size(); ++d) {
    if (box.length[d] != result.size(d)) result = result.narrow(d, box.start[d], box.length[d]);
  }
  return result;
}

IntervalMap::Pending::Pending(const IntervalMap& map, const at::Tensor& local, double fill) : map_(map) {
  TORCH_INTERNAL_ASSERT(local.sizes() == at::IntArrayRef(map.from_->local_shape()), "interval map for a block of ",
                        shape_string(map.from_->local_shape()), " got one of ", local.sizes());
  const auto packed = [&](const Transfer& transfer) {
    if (transfer.copies.size() == 1) {
      at::Tensor part = view(local, transfer.copies[0].source);
      if (!transfer.copies[0].flips.empty()) part = part.flip(transfer.copies[0].flips);
      return part.contiguous();
    }
    at::Tensor buffer = at::empty({transfer.numel}, local.options());
    int64_t at = 0;
    for (const Copy& copy : transfer.copies) {
      at::Tensor part = view(local, copy.source);
      if (!copy.flips.empty()) part = part.flip(copy.flips);
      buffer.narrow(0, at, copy.numel).view(part.sizes()).copy_(part);
      at += copy.numel;
    }
    return buffer;
  };
  if (map.exchanges_) {
    std::vector<Message> sends, receives;
    for (const Transfer& transfer : map.receives_) {
      arrived_.push_back(at::empty({transfer.numel}, local.options()));
      receives.push_back({transfer.peer, arrived_.back()});
    }
    for (const Transfer& transfer : map.sends_) sends.push_back({transfer.peer, packed(transfer)});
    work_ = map.from_->mesh()->group().exchange_async(std::move(sends), std::move(receives));
  }
  if (map.identity_) {
    result_ = local;
    return;
  }
  const bool one_view = map.receives_.empty() && map.covered_ && map.local_.size() == 1 && map.local_[0].flips.empty();
  if (one_view) {
    result_ = view(local, map.local_[0].source);
    return;
  }
  const auto options = local.options();
  result_ = map.covered_ ? at::empty(map.needed_shape_, options)
                         : (fill == 0 ? at::zeros(map.needed_shape_, options) : at::full(map.needed_shape_, fill, options));
  for (const Copy& copy : map.local_) {
    at::Tensor part = view(local, copy.source);
    if (!copy.flips.empty()) part = part.flip(copy.flips);
    view(result_, copy.target).copy_(part);
  }
}

at::Tensor IntervalMap::Pending::finish() {
  if (work_) work_->wait();
  work_.reset();
  for (size_t i = 0; i < arrived_.size(); ++i) {
    int64_t at = 0;
    for (const Copy& copy : map_.receives_[i].copies) {
      view(result_, copy.target).copy_(arrived_[i].narrow(0, at, copy.numel).view(copy.target.length));
      at += copy.numel;
    }
  }
  return result_;
}

std::unique_ptr<IntervalMap::Pending> IntervalMap::start(const at::Tensor& local, double fill) const {
  return std::make_unique<Pending>(*this, local, fill);
}

at::Tensor IntervalMap::apply(const at::Tensor& local, double fill) const { return Pending(*this, local, fill).finish(); }

at::Tensor IntervalMap::adjoint(const at::Tensor& grad) const { return add_adjoint(grad, {}); }

at::Tensor IntervalMap::add_adjoint(const at::Tensor& grad, const at::Tensor& owned) const {
  TORCH_INTERNAL_ASSERT(grad.sizes() == at::IntArrayRef(needed_shape_), "adjoint of an interval map for ",
                        shape_string(needed_shape_), " got ", grad.sizes());
  std::vector<Message> sends, receives;
  std::vector<at::Tensor> arrived;
  for (const Transfer& transfer : sends_) {
    arrived.push_back(at::empty({transfer.numel}, grad.options()));
    receives.push_back({transfer.peer, arrived.back()});
  }
  for (const Transfer& transfer : receives_) {
    at::Tensor buffer = at::empty({transfer.numel}, grad.options());
    int64_t at = 0;
    for (const Copy& copy : transfer.copies) {
      buffer.narrow(0, at, copy.numel).view(copy.target.length).copy_(view(grad, copy.target));
      at += copy.numel;
    }
    sends.push_back({transfer.peer, std::move(buffer)});
  }
  WorkPtr work;
  if (exchanges_) {
    work = from_->mesh()->group().exchange_async(std::move(sends), std::move(receives));
  }
  auto whole = local_.end();
  at::Tensor result = owned;
  if (!result.defined()) {
    // The owned block, usually copied whole into the needed box, starts the sum.
    const int64_t numel = c10::multiply_integers(from_->local_shape());
    whole = std::find_if(local_.begin(), local_.end(),
                         [&](const Copy& copy) { return copy.numel == numel && copy.flips.empty(); });
    if (whole == local_.end()) {
      result = at::zeros(from_->local_shape(), grad.options());
    } else {
      result = view(grad, whole->target);
      const bool more = local_.size() > 1 || !arrived.empty();
      if (more) result = result.clone(at::MemoryFormat::Contiguous);
    }
  }
  for (auto copy = local_.begin(); copy != local_.end(); ++copy) {
    if (copy == whole) continue;
    at::Tensor part = view(grad, copy->target);
    if (!copy->flips.empty()) part = part.flip(copy->flips);
    view(result, copy->source).add_(part);
  }
  if (work) work->wait();
  for (size_t i = 0; i < arrived.size(); ++i) {
    int64_t at = 0;
    for (const Copy& copy : sends_[i].copies) {
      at::Tensor part = arrived[i].narrow(0, at, copy.numel).view(copy.target.length);
      if (!copy.flips.empty()) part = part.flip(copy.flips);
      view(result, copy.source).add_(part);
      at += copy.numel;
    }
  }
  return result;
}

}  // namespace moonhalo
