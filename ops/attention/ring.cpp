// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/attention/ring.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "moonhalo/engine/exchange/interval_map.h"

namespace moonhalo {
namespace {

// Whose results are addends: of a tensor of cuts `spec`, over the mesh dims `summed` that do not cut it.
SpecPtr sums_over(const SpecPtr& spec, const std::vector<int64_t>& summed) {
  Layout layout = spec->layout();
  for (const int64_t m : summed) {
    if (!layout.uses(m)) layout.partials[m] = ReduceOp::kSum;
  }
  return intern(std::move(layout));
}

// (batch, head) of this rank's block in the whole tensor, flattened.
std::vector<int64_t> lines_of(const ShardSpec& query) {
  std::vector<int64_t> lines = {0};
  for (int64_t d = 0; d + 2 < query.ndim(); ++d) {
    std::vector<int64_t> next;
    for (const int64_t line : lines) {
      for (int64_t i = 0; i < query.local_shape()[d]; ++i)
        next.push_back(line * query.global_shape()[d] + query.offsets()[d] + i);
    }
    lines = std::move(next);
  }
  return lines;
}

// Of what has one number for all features of a query.
double even_sums(double query, int64_t features) { return query / static_cast<double>(std::max<int64_t>(1, features)); }

// Some output of which `delta` is the sum of its products with `grad_output`, row by row: all that the derivative of
// the scores takes from it, in less bytes.
at::Tensor stand_in_output(const at::Tensor& grad_output, const at::Tensor& delta) {
  if (grad_output.size(-1) == 0) return grad_output;
  const at::Tensor grad = grad_output.to(delta.scalar_type());
  const at::Tensor largest = grad.abs().amax(-1, /*keepdim=*/true);
  const at::Tensor divisor = largest.masked_fill(largest.eq(0), 1);
  const at::Tensor unit = grad / divisor;
  const at::Tensor length = unit.square().sum(-1, /*keepdim=*/true);
  return (unit * (delta.unsqueeze(-1) / divisor / length.masked_fill(length.eq(0), 1))).to(grad_output.scalar_type());
}

double local_numel(const ShardSpec& spec) { return static_cast<double>(c10::multiply_integers(spec.local_shape())); }

}  // namespace

AttentionRing::AttentionRing(AttentionSpecs specs, AttentionCall call)
    : specs_(std::move(specs)), call_(std::move(call)) {
  const ShardSpec& query = *specs_.query;
  const ShardSpec& key = *specs_.key;
  const DeviceMesh& mesh = *query.mesh();
  const int64_t rows = query.ndim() - 2;
  const Cut &queries = query.cut(rows), &keys = key.cut(rows);
  merged_ = mesh_dims_of_one(keys, queries);
  std::vector<int64_t> ring = mesh_dims_of_both(queries, keys);
  const std::vector<int64_t> queries_alone = mesh_dims_of_one(queries, keys);
  everywhere_ = call_.is_causal && !specs_.mask && ring.empty() && !queries_alone.empty();
  if (everywhere_) ring = queries_alone;

  const auto in_my_ring = [&](int64_t rank) {
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      const bool moves = std::find(ring.begin(), ring.end(), m) != ring.end();
      if (!moves && mesh.coordinate(rank, m) != mesh.coordinate(m)) return false;
    }
    return true;
  };
  std::vector<Interval> query_blocks, key_blocks;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    if (!in_my_ring(rank)) continue;
    if (rank == mesh.rank()) me_ = static_cast<int64_t>(members_.size());
    members_.push_back(static_cast<int>(rank));
    query_blocks.push_back(block_rows(query, rows, rank));
    key_blocks.push_back(block_rows(key, rows, rank));
  }
  const Interval own = block_rows(key, rows, mesh.rank());
  key_begin_ = own.begin;
  if (everywhere_) {  // each works with the keys beside its queries
    std::vector<int64_t> order(members_.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return query_blocks[a] < query_blocks[b]; });
    int64_t begin = own.begin;
    for (const int64_t i : order) {
      const int64_t end = i == order.back() ? own.end : std::clamp(query_blocks[i].end, begin, own.end);
      key_blocks[i] = {begin, end};
      begin = end;
    }
  }
  const auto per_row = [&](const ShardSpec& spec) {
    return local_numel(spec) / static_cast<double>(std::max<int64_t>(1, spec.local_shape()[rows]));
  };
  // Of the whole sequences where a block is empty: every member must come to the same figures.
  const auto even = [&](const SpecPtr& spec) {
    Layout layout = spec->layout();
    layout.cuts[rows] = {};
    return per_row(*intern(std::move(layout)));
  };
  const double keys_and_values = everywhere_ ? 0 : even(specs_.key) + even(specs_.value);
  const double sums = even_sums(even(specs_.query), query.global_shape().back());
  const bool may_lend = !specs_.mask;
  work_ = std::make_unique<AttentionWork>(
      query_blocks, key_blocks, call_.is_causal, may_lend,
      AttentionWork::Extents{even(specs_.query), keys_and_values, even(specs_.output) + sums});
  // Queries travel with the gradients of their results, two sums a row, and come home as gradients.
  backward_work_ =
      std::make_unique<AttentionWork>(std::move(query_blocks), std::move(key_blocks), call_.is_causal, may_lend,
                                      AttentionWork::Extents{even(specs_.query) + even(specs_.output) + 2 * sums,
                                                             2 * keys_and_values, even(specs_.query)});

  call_.queries = query.global_shape()[rows];
  call_.keys = key.global_shape()[rows];
  if (call_.dropout_p > 0) call_.lines = lines_of(query);
  output_ = sums_over(specs_.output, merged_);
  grad_query_ = sums_over(specs_.query, merged_);
  // Whatever cuts the queries, and not the keys, holds addends of the keys' gradients.
  std::vector<int64_t> used;
  for (int64_t d = 0; d <= rows; ++d)
    used.insert(used.end(), query.cut(d).mesh_dims.begin(), query.cut(d).mesh_dims.end());
  grad_key_ = sums_over(specs_.key, used);
  grad_value_ = sums_over(specs_.value, used);
  if (!specs_.mask) return;
  used.insert(used.end(), merged_.begin(), merged_.end());
  grad_mask_ = sums_over(specs_.mask, used);
}

// Steps

struct AttentionRing::Traffic {
  const std::vector<int>& members;
  bool packs;
  std::vector<Message> sends = {}, receives = {};

  void send(int64_t member, const at::Tensor& t) {
    if (t.numel() > 0) sends.push_back({members[member], packs ? t.contiguous() : t});
  }
  at::Tensor receive(int64_t member, at::IntArrayRef shape, const at::TensorOptions& options) {
    at::Tensor t = at::empty(shape, options);
    if (t.numel() > 0) receives.push_back({members[member], t});
    return t;
  }
  /// Room for rows of a member's tensor that is like `own`.
  at::Tensor receive_rows(int64_t member, const Interval& rows, const at::Tensor& own) {
    std::vector<int64_t> shape = own.sizes().vec();
    shape[2] = rows.size();
    return receive(member, shape, own.options());
  }
};

AttentionRing::Traffic AttentionRing::traffic() const {
  return {members_, !specs_.query->mesh()->group().takes_strided()};
}

// What a rank holds, in four dims; the last three only backward.
struct AttentionRing::Blocks {
  at::Tensor query, key, value, mask, shift, grad_output, delta, logsumexp;
  int64_t query_begin, key_begin;

  at::Tensor queries(const at::Tensor& t, const Interval& rows) const {
    return t.narrow(2, rows.begin - query_begin, rows.size());
  }
  at::Tensor shift_of(const Interval& rows) const {
    return !shift.defined() || shift.size(2) == 1 ? shift : queries(shift, rows);
  }
  at::Tensor keys(const at::Tensor& t, const Interval& rows) const {
    return t.narrow(2, rows.begin - key_begin, rows.size());
  }
};

AttentionRing::Blocks AttentionRing::blocks(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                            const at::Tensor& mask) const {
  Blocks b{attention_packed_rows(query),
           attention_packed_rows(key),
           attention_packed_rows(value),
           mask.defined() ? attention_mask_four_dims(mask, query) : mask,
           {},
           {},
           {},
           {},
           work_->queries(me_).begin,
           key_begin_};
  at::Tensor peaks =
      attention_peaks(call_.is_causal, {b.query_begin, cuts_mask_keys() ? key_begin_ : 0}, b.query, b.mask);
  if (peaks.defined() && cuts_mask_keys()) {
    peaks = peaks.contiguous();
    for (const int64_t m : merged_) specs_.query->mesh()->group(m).all_reduce(peaks, ReduceOp::kMax);
  }
  b.shift = attention_shift(peaks);
  return b;
}

// One step's guests: keys of the member ahead, queries of the member behind, and what becomes of them.
struct AttentionRing::Step {
  at::Tensor key, value;
  at::Tensor query, grad_output, delta, logsumexp;
  at::Tensor made[2],
      lent_made[2];                          // sent home: for the member ahead (gradients of keys), for that behind
  at::Tensor returned[2], lent_returned[2];  // come home: of this rank's keys, of its lent queries
};

void AttentionRing::exchange_inputs(const AttentionWork& work, int64_t step, const Blocks& b, Step& state,
                                    Traffic& t) const {
  const int64_t a = ahead(step), c = behind(step);
  if (!everywhere_) {
    const Interval wanted = work.seen(work.kept(me_, a), a), given = work.seen(work.kept(c, me_), me_);
    for (const at::Tensor& own : {b.key, b.value}) t.send(c, b.keys(own, given));
    state.key = t.receive_rows(a, wanted, b.key);
    state.value = t.receive_rows(a, wanted, b.value);
  }
  const Interval lent = work.lent(me_, a), guests = work.lent(c, me_);
  const std::pair<const at::Tensor*, at::Tensor*> of_queries[] = {{&b.query, &state.query},
                                                                  {&b.grad_output, &state.grad_output},
                                                                  {&b.delta, &state.delta},
                                                                  {&b.logsumexp, &state.logsumexp}};
  for (const auto& [own, guest] : of_queries) {
    if (!own->defined()) continue;
    if (!lent.empty()) t.send(a, b.queries(*own, lent));
    *guest = t.receive_rows(c, guests, *own);
  }
}

void AttentionRing::rotate(const std::function<void(int64_t, Traffic&)>& inputs,
                           const std::function<void(int64_t)>& compute,
                           const std::function<void(int64_t, Traffic&)>& results,
                           const std::function<void(int64_t)>& arrived) const {
  const int64_t size = work_->size();
  if (size == 1) return compute(0);
  Communicator& group = specs_.query->mesh()->group();
  for (int64_t s = 0; s <= size; ++s) {
    WorkPtr under_way;
    const bool asks = s + 1 < size, returns = s >= 2;
    if (asks || returns) {
      Traffic t = traffic();
      if (asks) inputs(s + 1, t);
      if (returns) results(s - 1, t);
      under_way = group.exchange_async(std::move(t.sends), std::move(t.receives));
    }
    if (s < size) compute(s);
    if (under_way) under_way->wait();
    if (returns) arrived(s - 1);
  }
}

bool AttentionRing::cuts_mask_keys() const {
  const SpecPtr& mask = specs_.mask;
  return mask && mask->ndim() > 0 && mask->is_cut(mask->ndim() - 1);
}

at::Tensor AttentionRing::mask_of(const at::Tensor& mask, const Interval& queries, const Interval& keys) const {
  if (!mask.defined()) return mask;
  at::Tensor part = mask;
  // The block of queries is this rank's; keys of the mask are whole, or as those of this rank.
  if (part.size(2) != 1) part = part.narrow(2, queries.begin - work_->queries(me_).begin, queries.size());
  if (part.size(3) != 1) part = part.narrow(3, keys.begin - (cuts_mask_keys() ? key_begin_ : 0), keys.size());
  return part;
}

std::tuple<at::Tensor, at::Tensor> AttentionRing::forward(const at::Tensor& query, const at::Tensor& key,
                                                          const at::Tensor& value, const at::Tensor& mask,
                                                          uint64_t dropout_key) const {
  AttentionCall call = call_;
  call.dropout_key = dropout_key;
  const Blocks b = blocks(query, key, value, mask);
  AttentionSums sums(b.query, value.size(-1));
  std::vector<Step> steps(work_->size());
  const auto compute = [&](int64_t s) {
    Step& step = steps[s];
    const int64_t a = ahead(s), c = behind(s);
    const Interval rows = work_->kept(me_, a), keys = work_->seen(rows, a);
    if (!rows.empty() && !keys.empty()) {
      const bool here = everywhere_ || s == 0;
      AttentionSums part = sums.rows(rows.begin - b.query_begin, rows.size());
      attend(call, {rows.begin, keys.begin}, b.queries(b.query, rows), here ? b.keys(b.key, keys) : step.key,
             here ? b.keys(b.value, keys) : step.value, mask_of(b.mask, rows, keys), b.shift_of(rows), part);
    }
    const Interval guests = s == 0 ? Interval{0, 0} : work_->lent(c, me_);
    if (!guests.empty()) {
      const Interval own = work_->seen(guests, me_);
      AttentionSums part(step.query, value.size(-1));
      attend(call, {guests.begin, own.begin}, step.query, b.keys(b.key, own), b.keys(b.value, own), {}, {}, part);
      step.lent_made[0] = part.output.to(query.scalar_type());
      step.lent_made[1] = part.logsumexp;
    }
    for (at::Tensor* used : {&step.key, &step.value, &step.query}) used->reset();
  };
  const auto results = [&](int64_t s, Traffic& t) {
    Step& step = steps[s];
    for (const at::Tensor& made : step.lent_made) {
      if (made.defined()) t.send(behind(s), made);
    }
    const Interval lent = work_->lent(me_, ahead(s));
    if (lent.empty()) return;
    step.lent_returned[0] = t.receive_rows(ahead(s), lent, sums.output.narrow(2, 0, 0).to(query.scalar_type()));
    step.lent_returned[1] = t.receive_rows(ahead(s), lent, sums.logsumexp);
  };
  const auto arrived = [&](int64_t s) {
    const Interval lent = work_->lent(me_, ahead(s));
    if (!lent.empty()) sums.add(lent.begin - b.query_begin, steps[s].lent_returned[0], steps[s].lent_returned[1]);
    steps[s] = {};
  };
  rotate([&](int64_t s, Traffic& t) { exchange_inputs(*work_, s, b, steps[s], t); }, compute, results, arrived);
  merge(sums.output, sums.logsumexp);
  return {sums.output.to(query.scalar_type()).reshape(specs_.output->local_shape()),
          sums.logsumexp.reshape(specs_.logsumexp->local_shape())};
}

void AttentionRing::merge(at::Tensor& output, at::Tensor& logsumexp) const {
  for (const int64_t m : merged_) {
    Communicator& group = specs_.query->mesh()->group(m);
    at::Tensor all = at::empty({group.size() * logsumexp.numel()}, logsumexp.options());
    group.all_gather(logsumexp.reshape({-1}), std::vector<int64_t>(group.size(), logsumexp.numel()), all);
    std::vector<int64_t> shape = logsumexp.sizes().vec();
    shape.insert(shape.begin(), group.size());
    const at::Tensor of_members = all.view(shape), total = of_members.logsumexp(0);
    // Weights that sum to 1 whatever the rounding of the logarithms.
    output.mul_(of_members.softmax(0)[group.rank()].masked_fill(total.eq(kUnseen), 0).unsqueeze(-1));
    logsumexp = total;
  }
}

AttentionRing::Gradients AttentionRing::backward(const at::Tensor& grad_output, const at::Tensor& query,
                                                 const at::Tensor& key, const at::Tensor& value, const at::Tensor& mask,
                                                 const at::Tensor& output, const at::Tensor& logsumexp,
                                                 uint64_t dropout_key, bool wants_mask) const {
  const AttentionWork& work = *backward_work_;
  AttentionCall call = call_;
  call.dropout_key = dropout_key;
  Blocks b = blocks(query, key, value, mask);
  b.grad_output = attention_four_dims(grad_output).contiguous();
  const at::Tensor whole_output = attention_packed_rows(output);
  b.logsumexp = logsumexp.reshape(b.query.sizes().slice(0, 3));
  if (work.size() > 1) b.delta = (b.grad_output.to(b.logsumexp.scalar_type()) * whole_output).sum(-1);
  const auto zeros_of = [&](const at::Tensor& t) {
    return at::zeros(t.sizes(), t.options().dtype(attention_sum_type(t.scalar_type())));
  };
  AttentionGradients own{zeros_of(b.query), zeros_of(b.key), zeros_of(b.value), {}};
  if (wants_mask) own.mask = zeros_of(b.mask);
  std::vector<Step> steps(work.size());

  const auto compute = [&](int64_t s) {
    Step& step = steps[s];
    const int64_t a = ahead(s), c = behind(s);
    const Interval rows = work.kept(me_, a), keys = work.seen(rows, a);
    if (!rows.empty() && !keys.empty()) {
      const bool here = everywhere_ || s == 0;
      const at::Tensor k = here ? b.keys(b.key, keys) : step.key, v = here ? b.keys(b.value, keys) : step.value;
      const AttentionGradients into{b.queries(own.query, rows), here ? b.keys(own.key, keys) : zeros_of(k),
                                    here ? b.keys(own.value, keys) : zeros_of(v), mask_of(own.mask, rows, keys)};
      attend_backward(call, {rows.begin, keys.begin}, b.queries(b.grad_output, rows), b.queries(b.query, rows), k, v,
                      mask_of(b.mask, rows, keys), b.shift_of(rows), b.queries(whole_output, rows),
                      b.queries(b.logsumexp, rows), into);
      if (!here) {
        step.made[0] = into.key.to(key.scalar_type());
        step.made[1] = into.value.to(value.scalar_type());
      }
    }
    const Interval guests = s == 0 ? Interval{0, 0} : work.lent(c, me_);
    if (!guests.empty()) {
      const Interval seen = work.seen(guests, me_);
      const AttentionGradients into{zeros_of(step.query), b.keys(own.key, seen), b.keys(own.value, seen), {}};
      attend_backward(call, {guests.begin, seen.begin}, step.grad_output, step.query, b.keys(b.key, seen),
                      b.keys(b.value, seen), {}, {}, stand_in_output(step.grad_output, step.delta), step.logsumexp,
                      into);
      step.lent_made[0] = into.query.to(query.scalar_type());
    }
    for (at::Tensor* used : {&step.key, &step.value, &step.query, &step.grad_output, &step.delta, &step.logsumexp})
      used->reset();
  };
  const auto results = [&](int64_t s, Traffic& t) {
    Step& step = steps[s];
    const int64_t a = ahead(s), c = behind(s);
    if (step.lent_made[0].defined()) t.send(c, step.lent_made[0]);
    const Interval lent = work.lent(me_, a);
    if (!lent.empty()) step.lent_returned[0] = t.receive_rows(a, lent, b.query);
    for (const at::Tensor& made : step.made) {
      if (made.defined()) t.send(a, made);
    }
    const Interval seen = everywhere_ ? Interval{0, 0} : work.seen(work.kept(c, me_), me_);
    if (seen.empty()) return;
    step.returned[0] = t.receive_rows(c, seen, b.key);
    step.returned[1] = t.receive_rows(c, seen, b.value);
  };
  const auto arrived = [&](int64_t s) {
    const Interval lent = work.lent(me_, ahead(s));
    if (!lent.empty()) b.queries(own.query, lent) += steps[s].lent_returned[0];
    if (steps[s].returned[0].defined()) {
      const Interval seen = work.seen(work.kept(behind(s), me_), me_);
      b.keys(own.key, seen) += steps[s].returned[0];
      b.keys(own.value, seen) += steps[s].returned[1];
    }
    steps[s] = {};
  };
  rotate([&](int64_t s, Traffic& t) { exchange_inputs(work, s, b, steps[s], t); }, compute, results, arrived);

  Gradients gradients{own.query.to(query.scalar_type()).reshape(query.sizes()),
                      own.key.to(key.scalar_type()).reshape(key.sizes()),
                      own.value.to(value.scalar_type()).reshape(value.sizes()),
                      {}};
  if (wants_mask) gradients.mask = attention_mask_gradient(own.mask, mask, query);
  return gradients;
}

}  // namespace moonhalo
