// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/tensor/box_set.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "moonhalo/engine/base/box.h"
#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/stream_copy.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {
namespace {

constexpr const char* kFix = "\n  fix   give each box its own begin, and every element of the field to one box at most";

/// Holds the facts of all boxes, identically on all ranks.
struct Facts {
  at::ScalarType dtype = at::kDouble;
  std::vector<int64_t> global;
  std::vector<std::vector<Box>> boxes;  // by rank
};

// count, dtype, ndim, global (0: not given), then begin and extent of each box.
std::string pack(const std::vector<Block>& mine) {
  std::vector<int64_t> words{static_cast<int64_t>(mine.size())};
  for (size_t i = 0; i < mine.size(); ++i) {
    const OwnedBox box = mine[i].box();
    if (i == 0) {
      words.insert(words.end(), {static_cast<int64_t>(mine[0].dtype), static_cast<int64_t>(box.extent.size())});
      std::vector<int64_t> global = mine[0].global;
      global.resize(box.extent.size(), 0);
      words.insert(words.end(), global.begin(), global.end());
    }
    words.insert(words.end(), box.begin.begin(), box.begin.end());
    words.insert(words.end(), box.extent.begin(), box.extent.end());
  }
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(int64_t)};
}

void check_box(const Box& box, const Facts& facts, size_t rank) {
  for (int64_t d = 0; d < box.ndim(); ++d) {
    TORCH_CHECK_VALUE(box[d].begin >= 0 && box[d].end <= facts.global[d],
                      "boxes: a box reaches beyond the field\n  have  rank ", rank, ": [", box[d].begin, ", ",
                      box[d].end, ") along dim ", d, " of ", facts.global[d], kFix);
  }
}

// Sorted by their first rows, boxes are compared only with those that begin before they end.
void check_no_overlap(const Facts& facts) {
  std::vector<std::pair<Box, size_t>> sorted;
  for (size_t rank = 0; rank < facts.boxes.size(); ++rank) {
    for (const Box& box : facts.boxes[rank]) {
      if (!box.empty()) sorted.emplace_back(box, rank);
    }
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first[0].begin < b.first[0].begin; });
  for (size_t i = 0; i < sorted.size(); ++i) {
    for (size_t j = i + 1; j < sorted.size() && sorted[j].first[0].begin < sorted[i].first[0].end; ++j) {
      const Box both = sorted[i].first.intersect(sorted[j].first);
      TORCH_CHECK_VALUE(both.empty(), "boxes: two boxes own the same elements\n  have  boxes of ranks ",
                        sorted[i].second, " and ", sorted[j].second, " with ", shape_string(both.shape()),
                        " elements in common", kFix);
    }
  }
}

Facts gather(const std::vector<Block>& mine, Communicator& world) {
  const TrafficScope moving(Traffic::kDistribute);
  fail_together(world, [&] {
    for (const Block& block : mine) {
      block.owned();
      TORCH_CHECK_VALUE(block.extent.size() == mine[0].extent.size() && block.dtype == mine[0].dtype &&
                            block.global == mine[0].global,
                        "boxes: they differ in dtype, number of dims or global extents", kFix);
    }
  });
  const std::vector<std::string> all = world.all_gather_strings(pack(mine));
  Facts facts;
  std::vector<int64_t> first;
  bool given = false;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::vector<int64_t> words(all[rank].size() / sizeof(int64_t));
    std::memcpy(words.data(), all[rank].data(), all[rank].size());
    facts.boxes.emplace_back();
    if (words[0] == 0) continue;
    const int64_t ndim = words[2];
    const std::vector<int64_t> head(words.begin() + 1, words.begin() + 3 + ndim);
    if (first.empty()) first = head;
    TORCH_CHECK_VALUE(head == first, "boxes: ranks differ in dtype, number of dims or global extents\n  have  rank ",
                      rank, " and the first that has boxes", kFix);
    facts.dtype = static_cast<at::ScalarType>(words[1]);
    if (facts.global.empty()) facts.global.assign(words.begin() + 3, words.begin() + 3 + ndim);
    const auto is_zero = [](int64_t extent) { return extent == 0; };
    given = given || !std::all_of(head.begin() + 2, head.end(), is_zero);
    for (auto next = words.begin() + 3 + ndim; next != words.end(); next += 2 * ndim) {
      Box box;
      for (int64_t d = 0; d < ndim; ++d) box.push_back({next[d], next[d] + next[ndim + d]});
      facts.boxes.back().push_back(box);
      for (int64_t d = 0; d < ndim && !given; ++d) facts.global[d] = std::max(facts.global[d], box[d].end);
    }
  }
  TORCH_CHECK_VALUE(!first.empty(), "boxes: no rank has any\n  have  a field without boxes", kFix);
  for (size_t rank = 0; rank < facts.boxes.size(); ++rank) {
    for (const Box& box : facts.boxes[rank]) check_box(box, facts, rank);
  }
  check_no_overlap(facts);
  return facts;
}

at::Tensor part_of(at::Tensor whole, const std::vector<int64_t>& start, const std::vector<int64_t>& length) {
  for (size_t d = 0; d < start.size(); ++d) whole = whole.narrow(static_cast<int64_t>(d), start[d], length[d]);
  return whole;
}

std::vector<int64_t> begins(const Box& both, const Box& from) {
  std::vector<int64_t> starts;
  for (int64_t d = 0; d < both.ndim(); ++d) starts.push_back(both[d].begin - from[d].begin);
  return starts;
}

}  // namespace

BoxSet::BoxSet(std::vector<Block> mine, Communicator& world, const std::function<MeshPtr(int64_t)>& make_mesh,
               int64_t holders) {
  const Facts facts = gather(mine, world);
  for (const Block& block : mine) mine_.push_back(block.owned());
  const int64_t ranks = world.size(), rows = facts.global[0];
  if (holders == 0) holders = ranks;
  std::vector<int64_t> sizes(ranks - holders, 0);
  for (int64_t r = 0; r < holders; ++r) sizes.push_back(rows * (r + 1) / holders - rows * r / holders);
  const MeshPtr mesh = make_mesh(ranks);
  const SpecPtr spec = make_spec(mesh, facts.global, {ranks == 1 ? replicate() : shard(0, sizes)});
  const auto zeros = [&] { return at::zeros(spec->local_shape(), at::TensorOptions().dtype(facts.dtype)); };
  staged_ = zeros();
  field_ = from_local(zeros(), spec);
  const int me = world.rank();
  const Box slab = block_box(*spec, me);
  for (int peer = 0; peer < world.size(); ++peer) {
    const Box theirs = block_box(*spec, peer);
    for (size_t i = 0; i < facts.boxes[me].size(); ++i) {
      const Box both = facts.boxes[me][i].intersect(theirs);
      if (!both.empty()) from_boxes_.push_back({peer, begins(both, facts.boxes[me][i]), {}, both.shape(), i});
    }
    for (const Box& box : facts.boxes[peer]) {
      const Box both = box.intersect(slab);
      if (!both.empty()) from_slab_.push_back({peer, {}, begins(both, slab), both.shape()});
    }
  }
}

namespace {

/// One flat tensor for each peer, which holds its regions in their order.
template <typename Region>
std::map<int, at::Tensor> buffers(const std::vector<Region>& regions, const at::TensorOptions& options) {
  std::map<int, at::Tensor> made;
  std::map<int, int64_t> numel;
  for (const Region& region : regions) numel[region.peer] += c10::multiply_integers(region.length);
  for (const auto& [peer, count] : numel) made[peer] = at::empty({count}, options);
  return made;
}

template <typename Region, typename Do>
void each(const std::vector<Region>& regions, std::map<int, at::Tensor>& flat, const Do& work) {
  std::map<int, int64_t> at;
  for (const Region& region : regions) {
    const int64_t count = c10::multiply_integers(region.length);
    work(region, flat[region.peer]
                     .narrow(0, std::exchange(at[region.peer], at[region.peer] + count), count)
                     .view(region.length));
  }
}

/// Rows of a region, one after another.
void stream_rows(char*& to, const char* from, const at::Tensor& region, int64_t dim) {
  const auto element = static_cast<int64_t>(region.element_size());
  if (dim == region.dim() - 1) {
    const int64_t bytes = region.size(dim) * element;
    stream_copy(to, from, static_cast<size_t>(bytes));
    to += bytes;
    return;
  }
  for (int64_t i = 0; i < region.size(dim); ++i)
    stream_rows(to, from + i * region.stride(dim) * element, region, dim + 1);
}

/// Where rows are long and many; nothing else is worth it.
bool can_stream(const at::Tensor& region) {
  constexpr int64_t kLeast = int64_t{1} << 20, kRow = 1024;
  return region.is_cpu() && static_cast<int64_t>(region.nbytes()) >= kLeast && region.dim() > 0 &&
         region.stride(-1) == 1 && region.size(-1) * static_cast<int64_t>(region.element_size()) >= kRow &&
         !region.is_conj() && !region.is_neg() && !is_fake(region);
}

void pack(at::Tensor flat, const at::Tensor& region, bool later) {
  if (!later || !can_stream(region)) {
    flat.copy_(region);
    return;
  }
  char* to = static_cast<char*>(flat.mutable_data_ptr());
  stream_rows(to, static_cast<const char*>(region.const_data_ptr()), region, 0);
  finish_stream();
}

}  // namespace

// All that goes between two ranks is one message. Both list its regions in the order of the owner's boxes.
BoxSet::Reading BoxSet::start(const std::vector<Region>& sent, const Give& give, const std::vector<Region>& received,
                              Reading ended, bool later) const {
  Reading reading = ended.work != nullptr
                        ? std::move(ended)
                        : Reading{nullptr, buffers(received, staged_.options()), buffers(sent, staged_.options())};
  each(sent, reading.leaving, [&](const Region& region, const at::Tensor& flat) { pack(flat, give(region), later); });
  std::vector<Message> sends, receives;
  for (const auto& [peer, data] : reading.leaving) sends.push_back({peer, data});
  for (const auto& [peer, data] : reading.arriving) receives.push_back({peer, data});
  const TrafficScope moving(Traffic::kDistribute);
  reading.work = spec(field_)->mesh()->group().exchange_async(std::move(sends), std::move(receives));
  return reading;
}

void BoxSet::finish(const std::vector<Region>& received, Reading& reading, const Give& place) {
  reading.work->wait();
  each(received, reading.arriving, [&](const Region& region, const at::Tensor& flat) { place(region).copy_(flat); });
}

BoxSet::Reading BoxSet::start_read(const std::vector<at::Tensor>& boxes, Reading ended, bool later) const {
  TORCH_CHECK_VALUE(boxes.size() == mine_.size(),
                    "boxes: the number of tensors that stand for boxes differs from theirs\n  have  ", boxes.size(),
                    " tensors, ", mine_.size(), " boxes\n  fix   give one tensor for each box, in their order");
  for (size_t i = 0; i < boxes.size(); ++i) {
    TORCH_CHECK_VALUE(boxes[i].sizes() == mine_[i].sizes() && boxes[i].scalar_type() == mine_[i].scalar_type(),
                      "boxes: what stands for box ", i, " differs from it\n  have  ", boxes[i].toString(),
                      shape_string(boxes[i].sizes()), " for ", mine_[i].toString(), shape_string(mine_[i].sizes()),
                      "\n  fix   give tensors of the shapes and dtype of the boxes, or make another BoxSet");
  }
  const auto in_box = [&](const Region& region) { return part_of(boxes[region.box], region.in_box, region.length); };
  return start(from_boxes_, in_box, from_slab_, std::move(ended), later);
}

void BoxSet::finish_read(Reading& reading) {
  finish(from_slab_, reading, [this](const Region& region) { return part_of(staged_, region.in_slab, region.length); });
  field_.copy_(from_local(staged_, spec(field_)));
}

at::Tensor BoxSet::owned() const {
  const at::Tensor block = at::zeros(spec(field_)->local_shape(), at::kBool);
  for (const Region& region : from_slab_) part_of(block, region.in_slab, region.length).fill_(true);
  return from_local(block, spec(field_));
}

void BoxSet::read() {
  Reading reading = start_read(mine_);
  finish_read(reading);
}

void BoxSet::write() const {
  const at::Tensor slab = to_local(field_);
  const auto in_slab = [&](const Region& region) { return part_of(slab, region.in_slab, region.length); };
  Reading writing = start(from_slab_, in_slab, from_boxes_, {});
  finish(from_boxes_, writing,
         [this](const Region& region) { return part_of(mine_[region.box], region.in_box, region.length); });
}

}  // namespace moonhalo
