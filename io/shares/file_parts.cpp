// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/shares/file_parts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <deque>

#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/exchange/rank_shares.h"

namespace moonhalo::io {
namespace {

constexpr int64_t kPieceBytes = 16 << 20;  // of what has to be packed or brought from a device

/// Returns how much a rank gathers at once: little, so that it is still in the cache when it is written, but of every
/// rank a message that is worth sending.
int64_t gathered_at_once(const ShardSpec& spec) {
  constexpr int64_t kLeast = 2 << 20, kMessage = 512 << 10;
  return std::clamp(kMessage * spec.mesh()->size(), kLeast, kPieceBytes);
}

at::Tensor region(at::Tensor tensor, const Box& box, const Box& within) {
  for (int64_t dim = 0; dim < box.ndim(); ++dim) {
    tensor = tensor.narrow(dim, box[dim].begin - within[dim].begin, box[dim].size());
  }
  return tensor;
}

/// Pieces of one tensor, one by rank, that are sent at once.
struct Round {
  const FilePart* part;
  std::vector<Box> boxes;
  int64_t bytes;  // of the largest
};

void add_rounds(const FilePart& part, std::vector<Round>& rounds) {
  std::vector<std::vector<Box>> pieces;
  size_t count = 0;
  for (const Box& box : part.shares.boxes) {
    pieces.push_back(pieces_of(box, part.element_bytes, gathered_at_once(*part.spec)));
    count = std::max(count, pieces.back().size());
  }
  Box none;
  for (int64_t dim = 0; dim < part.box.ndim(); ++dim) none.push_back({0, 0});
  for (size_t i = 0; i < count; ++i) {
    Round round{.part = &part, .boxes = {}, .bytes = 0};
    for (const std::vector<Box>& of_rank : pieces) {
      round.boxes.push_back(i < of_rank.size() ? of_rank[i] : none);
      round.bytes = std::max(round.bytes, round.boxes.back().numel() * part.element_bytes);
    }
    rounds.push_back(std::move(round));
  }
}

/// Notes which ranks send as much in these rounds, which are of one mesh.
void note_rounds(at::ArrayRef<Round> rounds) {
  for (size_t begin = 0, end = 0; begin < rounds.size(); begin = end) {
    const SpecPtr& spec = rounds[begin].part->spec;
    for (end = begin + 1; end < rounds.size() && rounds[end].part->spec == spec;) ++end;
    const at::ArrayRef<Round> same = rounds.slice(begin, end - begin);
    note_moved_boxes(*spec->mesh(), {.rounds = std::ssize(same),
                                     .from = [&](int64_t, int64_t rank) { return block_box(*spec, rank); },
                                     .to = [&](int64_t round, int64_t rank) { return same[round].boxes[rank]; },
                                     .serves = Ownership::of(spec).serves});
  }
}

void gather_rounds(at::ArrayRef<Round> rounds, const VisitPiece& visit) {
  note_rounds(rounds);
  HaloExchange exchange;
  std::deque<IntervalMap> maps;
  for (const Round& round : rounds) {
    maps.emplace_back(round.part->spec, [&](int64_t rank) { return requests_for(round.boxes[rank]); });
    exchange.add_gather(maps.back(), round.part->block);
  }
  exchange.start();
  exchange.wait();
  for (size_t i = 0; i < rounds.size(); ++i) {
    const FilePart& part = *rounds[i].part;
    const Box& mine = rounds[i].boxes[part.spec->mesh()->rank()];
    if (!mine.empty()) visit(part, mine, exchange.gathered(i).to(at::kCPU).contiguous());
  }
}

}  // namespace

FilePart share_block(const SpecPtr& spec, const at::Tensor& block, std::vector<int64_t>& bytes, int64_t short_run) {
  const DeviceMesh& mesh = *spec->mesh();
  bytes.resize(mesh.size());
  FilePart part{.element_bytes = static_cast<int64_t>(block.element_size()), .spec = spec};
  part.shares = share_out(*spec, part.element_bytes, bytes, short_run);
  part.block = block.dim() == 0 ? block.reshape({1}) : block;
  part.owned = block.dim() == 0 ? Box{{0, 1}} : block_box(*spec, mesh.rank());
  part.box = part.shares.boxes[mesh.rank()];
  return part;
}

void for_each_piece(const std::vector<FilePart>& parts, const VisitPiece& visit) {
  std::vector<Round> rounds;
  for (const FilePart& part : parts) {
    if (part.shares.moves) {
      add_rounds(part, rounds);
    } else if (part.block.is_cpu() && part.block.is_contiguous()) {
      if (!part.box.empty()) visit(part, part.box, region(part.block, part.box, part.owned).contiguous());
    } else {
      for (const Box& piece : pieces_of(part.box, part.element_bytes, kPieceBytes)) {
        visit(part, piece, region(part.block, piece, part.owned).to(at::kCPU).contiguous());
      }
    }
  }
  for (size_t begin = 0, end = 0; begin < rounds.size(); begin = end) {
    const auto joins = [&](const Round& round, int64_t bytes) {
      const FilePart &first = *rounds[begin].part, &part = *round.part;
      return first.spec->mesh() == part.spec->mesh() && first.block.dtype() == part.block.dtype() &&
             bytes <= gathered_at_once(*part.spec);
    };
    int64_t bytes = rounds[begin].bytes;
    for (end = begin + 1; end < rounds.size() && joins(rounds[end], bytes + rounds[end].bytes); ++end)
      bytes += rounds[end].bytes;
    gather_rounds({rounds.data() + begin, end - begin}, visit);
  }
}

}  // namespace moonhalo::io
