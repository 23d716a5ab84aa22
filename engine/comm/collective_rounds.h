// SPDX-License-Identifier: Apache-2.0
// Verbs in rounds of messages, of which a rank sends at most one in each. All ranks know who sends how much to whom in
// which round. One Call (collective_messages.h) has the messages of all rounds: a rank goes on when it has received
// those of a round, while its own may still be under way. It waits for these before it writes to their memory.
#pragma once

#include <algorithm>
#include <bit>
#include <utility>

#include "moonhalo/engine/comm/collective_messages.h"
#include "moonhalo/engine/comm/message_counts.h"
#include "moonhalo/engine/comm/sum_tree.h"

namespace moonhalo {

/// The parts that ranks hold of one run of elements: part i is what rank order[i] has, and begins at begins[i].
struct PartList {
  /// In the order of ranks, with the sizes given.
  explicit PartList(at::IntArrayRef counts) : PartList({}, counts) {
    for (size_t i = 0; i < counts.size(); ++i) order.push_back(static_cast<int>(i));
  }
  PartList(std::vector<int> order_, at::IntArrayRef counts) : order(std::move(order_)) {
    for (const int64_t count : counts) begins.push_back(begins.back() + count);
  }
  int size() const { return static_cast<int>(begins.size()) - 1; }
  int64_t count(PartRange range) const { return begins[range.end] - begins[range.begin]; }

  std::vector<int> order;
  std::vector<int64_t> begins{0};
};

/// The part of `part` and those of its next `step` neighbours, as a rank has them before a round. With a power of two
/// ranks these are halves of halves; else they go on from the last part to the first.
inline PartRange gathered(int part, int step, int size) {
  if (!std::has_single_bit(static_cast<unsigned>(size))) return {part, part + step};
  return {part & -step, (part & -step) + step};
}

/// Every rank has its part in its place in `data`, and gets the others': as many as it has in each round. Sends may be
/// under way in the end.
template <typename Call>
void gather_rounds(Call& call, const PartList& parts, int part, const at::Tensor& data) {
  const int size = parts.size();
  const size_t item = data.itemsize();
  // The parts from the last on to the first are two runs.
  const auto runs = [&](PartRange range) {
    const PartRange head{range.begin % size, std::min(range.begin % size + range.end - range.begin, size)};
    return std::pair{head, PartRange{0, range.end - range.begin - (head.end - head.begin)}};
  };
  const auto place = [&](int at) { return bytes_of(data) + parts.begins[at] * item; };
  for (int step = 1; step < size; step *= 2) {
    const bool halves = std::has_single_bit(static_cast<unsigned>(size));
    const int count = std::min(step, size - step);
    const int to = halves ? part ^ step : (part - step + size) % size, from = halves ? to : (part + step) % size;
    const auto [sent, sent_on] = runs(gathered(part, halves ? step : count, size));
    const auto [come, come_on] = runs(gathered(from, halves ? step : count, size));
    const size_t sent_bytes = parts.count(sent) * item, sent_on_bytes = parts.count(sent_on) * item;
    const size_t come_bytes = parts.count(come) * item, come_on_bytes = parts.count(come_on) * item;
    call.keep(data);
    const char* leaving = place(sent.begin);
    at::Tensor both, two_runs;
    if (sent_on_bytes > 0) {
      both = byte_buffer(sent_bytes + sent_on_bytes);
      std::memcpy(bytes_of(both), leaving, sent_bytes);
      std::memcpy(bytes_of(both) + sent_bytes, place(0), sent_on_bytes);
      call.keep(both);
      leaving = const_bytes_of(both);
    }
    char* arriving = place(come.begin);
    if (come_on_bytes > 0) {
      two_runs = byte_buffer(come_bytes + come_on_bytes);
      call.keep(two_runs);
      arriving = bytes_of(two_runs);
    }
    pass_on(call, {parts.order[to], leaving, sent_bytes + sent_on_bytes},
            {parts.order[from], arriving, come_bytes + come_on_bytes});
    if (both.defined() || two_runs.defined()) call.wait();  // frees the two copies
    if (come_on_bytes == 0) continue;
    std::memcpy(place(come.begin), arriving, come_bytes);
    std::memcpy(place(0), arriving + come_bytes, come_on_bytes);
  }
}

/// A reduce-scatter along the tree. `in` has the parts of SumPlan::order, part i from element places[i]; this
/// rank's is left in `out`, of its size. Where `in` has the parts in their order, it may be overwritten, and `out`
/// are in it. All messages have ended in the end.
template <typename Call>
class ReduceRounds {
 public:
  ReduceRounds(Call& call, const SumPlan& plan, const PartList& parts, at::IntArrayRef places, const at::Tensor& in,
               ReduceOp op, bool overwrite)
      : call_(call),
        plan_(plan),
        parts_(parts),
        places_(places),
        in_(in),
        op_(op),
        dtype_(in.scalar_type()),
        partial_(partial_dtype(dtype_)),
        in_place_(overwrite && partial_ == dtype_) {}

  /// `out` is in the memory of `holder`.
  void run(int rank, const at::Tensor& holder, char* out) {
    const std::vector<SumStep> steps = plan_.steps(rank);
    int64_t most = 0;
    for (const SumStep& step : steps) most = std::max(most, received_bytes(step));
    theirs_ = byte_buffer(most);
    for (const SumStep& step : steps) step.final ? hand_over(step, holder, out) : round(step);
    call_.wait();
    if (!steps.back().final) finish(steps.back().kept, out);
  }

 private:
  // A rank's own part, which comes in the end, has another place.
  int64_t received_bytes(const SumStep& step) const {
    if (step.receive_from < 0 || step.final) return 0;
    return parts_.count(step.kept) * static_cast<int64_t>(c10::elementSize(step.raw ? dtype_ : partial_));
  }

  void round(const SumStep& step) {
    call_.keep(in_);
    call_.keep(mine_);
    call_.keep(theirs_);
    const bool receives = step.receive_from >= 0;
    const size_t item = c10::elementSize(step.raw ? dtype_ : partial_);
    const char* leaving = nullptr;
    size_t bytes = 0;
    if (step.send_to >= 0) {
      bytes = parts_.count(step.sent) * c10::elementSize(own_ ? dtype_ : partial_);
      leaving = own_ ? together(step.sent) : partial(step.sent.begin);
    }
    pass_on(call_, {step.send_to, leaving, bytes},
            {step.receive_from, bytes_of(theirs_), static_cast<size_t>(received_bytes(step))});
    if (own_ && in_place_) mine_ = in_;
    if (own_ && !in_place_) {
      mine_ = empty_block({parts_.count(step.kept)}, in_.options().dtype(partial_));
      first_part_ = step.kept.begin;
    }
    if (!receives) return;
    const char* come = const_bytes_of(theirs_);
    each_run(step.kept, [&](int64_t place, int64_t at, int64_t count) {
      const Operand mine{own_ ? const_bytes_of(in_) + place * in_.itemsize() : partial_at(at), own_};
      const Operand other{come + (at - parts_.begins[step.kept.begin]) * item, step.raw};
      reduce_two(op_, dtype_, step.first ? mine : other, step.first ? other : mine, count, partial_at(at));
    });
    own_ = false;
  }

  // In the end a rank has its own part, and that of a rank which has nothing.
  void hand_over(const SumStep& step, const at::Tensor& holder, char* out) {
    call_.wait();  // `out` may be memory that is sent
    if (step.receive_from < 0) finish(step.kept, out);
    call_.keep(holder);
    const at::Tensor others = byte_buffer(step.send_to >= 0 ? parts_.count(step.sent) * in_.itemsize() : 0);
    call_.keep(others);
    if (step.send_to >= 0) finish(step.sent, bytes_of(others));
    pass_on(call_, {step.send_to, const_bytes_of(others), others.nbytes()},
            {step.receive_from, out, parts_.count(step.kept) * in_.itemsize()});
  }

  void finish(PartRange range, char* to) {
    finish_reduction(op_, dtype_, partial(range.begin), plan_.ranks(), parts_.count(range), to);
  }

  // Calls give(where it is in `in`, its element in the order of parts, count).
  template <typename Give>
  void each_run(PartRange range, const Give& give) {
    for (int i = range.begin; i < range.end;) {
      const int first = i++;
      while (i < range.end && (!own_ || places_[i] - places_[first] == parts_.begins[i] - parts_.begins[first])) ++i;
      give(places_[first], parts_.begins[first], parts_.count({first, i}));
    }
  }

  // This rank's own values, one behind the other.
  const char* together(PartRange range) {
    const size_t item = in_.itemsize();
    const char* const own = const_bytes_of(in_);
    int runs = 0;
    each_run(range, [&](int64_t, int64_t, int64_t) { ++runs; });
    if (runs == 1) return own + places_[range.begin] * item;
    const at::Tensor packed = byte_buffer(parts_.count(range) * item);
    call_.keep(packed);
    each_run(range, [&](int64_t place, int64_t at, int64_t count) {
      if (count > 0)
        std::memcpy(bytes_of(packed) + (at - parts_.begins[range.begin]) * item, own + place * item, count * item);
    });
    return const_bytes_of(packed);
  }

  char* partial(int part) { return partial_at(parts_.begins[part]); }
  char* partial_at(int64_t element) {
    return bytes_of(mine_) + (element - parts_.begins[first_part_]) * c10::elementSize(partial_);
  }

  Call& call_;
  const SumPlan& plan_;
  const PartList& parts_;
  at::IntArrayRef places_;
  at::Tensor in_, mine_, theirs_;
  ReduceOp op_;
  at::ScalarType dtype_, partial_;
  bool in_place_;
  bool own_ = true;  // nothing has been received yet
  int first_part_ = 0;
};

template <typename Call>
void all_reduce_rounds(Call& call, const SumPlan& plan, int rank, at::Tensor& data, ReduceOp op) {
  const int size = plan.ranks();
  if (data.nbytes() * size <= kGatherBytes) {
    const at::Tensor all = byte_buffer(data.nbytes() * size);
    const PartList parts(std::vector<int64_t>(size, static_cast<int64_t>(data.nbytes())));
    if (data.nbytes() > 0) std::memcpy(bytes_of(all) + parts.begins[rank], const_bytes_of(data), data.nbytes());
    gather_rounds(call, parts, rank, all);
    reduce_gathered(all, size, data, op);
    return call.wait();
  }
  const std::vector<int64_t> shares = even_shares(data.numel(), size);
  const PartList parts = plan.direct() ? PartList(shares) : PartList(plan.order(), shares);
  const int part = plan.direct() ? rank : plan.part_of()[rank];
  char* const mine = bytes_of(data) + parts.begins[part] * data.itemsize();
  if (plan.direct()) {
    reduce_parts(call, rank, data, shares, mine, op);
  } else {
    ReduceRounds<Call>(call, plan, parts, parts.begins, data, op, true).run(rank, data, mine);
  }
  gather_rounds(call, parts, part, data);
  call.wait();
}

template <typename Call>
void reduce_scatter_rounds(Call& call, const SumPlan& plan, int rank, const at::Tensor& in, at::IntArrayRef counts,
                           at::Tensor& out, ReduceOp op) {
  if (plan.direct()) return reduce_parts(call, rank, in, counts, bytes_of(out), op);
  const PartList by_rank(counts);
  std::vector<int64_t> places, sizes;
  for (const int owner : plan.order()) {
    places.push_back(by_rank.begins[owner]);
    sizes.push_back(counts[owner]);
  }
  const PartList parts(plan.order(), sizes);
  ReduceRounds<Call>(call, plan, parts, places, in, op, false).run(rank, out, bytes_of(out));
}

template <typename Call>
void all_gather_rounds(Call& call, int rank, const at::Tensor& in, at::IntArrayRef counts, const at::Tensor& out) {
  const PartList parts(counts);
  if (in.nbytes() > 0)
    std::memmove(bytes_of(out) + parts.begins[rank] * out.itemsize(), const_bytes_of(in), in.nbytes());
  gather_rounds(call, parts, rank, out);
  call.wait();
}

/// In round k the parts that have to go on by 2^k ranks do so; each takes as many bytes as the largest.
template <typename Call>
void all_to_all_rounds(Call& call, int rank, const at::Tensor& in, at::IntArrayRef send_counts, const at::Tensor& out,
                       at::IntArrayRef receive_counts, int64_t largest) {
  const int size = static_cast<int>(send_counts.size());
  const size_t item = in.itemsize();
  if (!goes_in_rounds(size, largest, item)) return swap_parts(call, rank, in, send_counts, out, receive_counts);
  const size_t slot_bytes = largest * item;
  const PartList leaving(send_counts), arriving(receive_counts);
  const at::Tensor parts = byte_buffer(slot_bytes * size);  // part d goes on by d ranks
  const auto part = [&](int distance) { return bytes_of(parts) + slot_bytes * distance; };
  const auto copy = [&](char* to, const char* from, int64_t count) {
    if (count > 0) std::memcpy(to, from, count * item);
  };
  for (int distance = 0; distance < size; ++distance) {
    const int to = (rank + distance) % size;
    copy(part(distance), const_bytes_of(in) + leaving.begins[to] * item, send_counts[to]);
  }
  const at::Tensor out_going = byte_buffer(slot_bytes * size), coming = byte_buffer(slot_bytes * size);
  for (int step = 1; step < size; step *= 2) {
    std::vector<int> sent_distances;
    for (int distance = step; distance < size; ++distance) {
      if ((distance & step) != 0) sent_distances.push_back(distance);
    }
    const size_t bytes = slot_bytes * sent_distances.size();
    call.keep(out_going);
    call.keep(coming);
    for (size_t i = 0; i < sent_distances.size(); ++i)
      copy(bytes_of(out_going) + slot_bytes * i, part(sent_distances[i]), largest);
    pass_on(call, {(rank + step) % size, const_bytes_of(out_going), bytes},
            {(rank - step + size) % size, bytes_of(coming), bytes});
    call.wait();
    for (size_t i = 0; i < sent_distances.size(); ++i)
      copy(part(sent_distances[i]), const_bytes_of(coming) + slot_bytes * i, largest);
  }
  for (int distance = 0; distance < size; ++distance) {
    const int from = (rank - distance + size) % size;
    copy(bytes_of(out) + arriving.begins[from] * item, part(distance), receive_counts[from]);
  }
}

}  // namespace moonhalo
