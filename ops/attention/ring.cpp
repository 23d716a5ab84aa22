// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/attention/ring.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/exchange/equal_steps.h"
#include "moonhalo/engine/exchange/interval_map.h"

namespace moonhalo {
namespace {

// The spec of addends: cut as `spec` is, and to be summed over the mesh dims `summed`, which do not cut it.
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

// The elements of a tensor that has one number for all features of a query.
double even_sums(double query, int64_t features) { return query / static_cast<double>(std::max<int64_t>(1, features)); }

// Some output of which `delta` is the sum of its products with `grad_output`, row by row: all that the derivative of
// the scores takes from it, in less bytes.
at::Tensor delta_as_output(const at::Tensor& grad_output, const at::Tensor& delta) {
  if (grad_output.size(-1) == 0) return grad_output;
  const at::Tensor grad = grad_output.to(delta.scalar_type());
  const at::Tensor largest = grad.abs().amax(-1, /*keepdim=*/true);
  const at::Tensor divisor = largest.masked_fill(largest.eq(0), 1);
  const at::Tensor unit = grad / divisor;
  const at::Tensor length = unit.square().sum(-1, /*keepdim=*/true);
  return (unit * (delta.unsqueeze(-1) / divisor / length.masked_fill(length.eq(0), 1))).to(grad_output.scalar_type());
}

// All members hold the keys `own`. Each takes those that stand beside its queries.
std::vector<Interval> keys_beside(const std::vector<Interval>& queries, const Interval& own) {
  std::vector<int64_t> order(queries.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return queries[a] < queries[b]; });
  std::vector<Interval> keys(queries.size());
  int64_t begin = own.begin;
  for (const int64_t i : order) {
    const int64_t end = i == order.back() ? own.end : std::clamp(queries[i].end, begin, own.end);
    keys[i] = {begin, end};
    begin = end;
  }
  return keys;
}

double local_numel(const ShardSpec& spec) { return static_cast<double>(c10::multiply_integers(spec.local_shape())); }

}  // namespace

AttentionRing::AttentionRing(AttentionSpecs specs, AttentionCall call)
    : specs_(std::move(specs)), call_(std::move(call)) {
  const ShardSpec &query = *specs_.query, &key = *specs_.key;
  const int64_t rows = query.ndim() - 2;
  merged_ = mesh_dims_of_one(key.cut(rows), query.cut(rows));
  ring_members();
  partition_work();
  call_.queries = query.global_shape()[rows];
  call_.keys = key.global_shape()[rows];
  if (call_.dropout_p > 0) call_.lines = lines_of(query);
  choose_result_specs();
}

// Ranks that differ only along the mesh dims that cut queries and keys.
void AttentionRing::ring_members() {
  const ShardSpec& query = *specs_.query;
  const DeviceMesh& mesh = *query.mesh();
  const Cut &queries = query.cut(query.ndim() - 2), &keys = specs_.key->cut(query.ndim() - 2);
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
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    if (!in_my_ring(rank)) continue;
    if (rank == mesh.rank()) me_ = static_cast<int64_t>(members_.size());
    members_.push_back(static_cast<int>(rank));
  }
}

// Divides the work among the ranks, forward and backward.
void AttentionRing::partition_work() {
  const ShardSpec &query = *specs_.query, &key = *specs_.key;
  const int64_t rows = query.ndim() - 2;
  std::vector<Interval> query_blocks, key_blocks;
  for (const int rank : members_) {
    query_blocks.push_back(query.block_range(rows, rank));
    key_blocks.push_back(key.block_range(rows, rank));
  }
  key_begin_ = key_blocks[me_].begin;
  if (everywhere_) key_blocks = keys_beside(query_blocks, key_blocks[me_]);
  // Elements per row of the whole sequences, where a block is empty too: every member must come to the same figures.
  const auto per_row = [&](const SpecPtr& spec) {
    Layout layout = spec->layout();
    layout.cuts[rows] = {};
    const SpecPtr whole = intern(std::move(layout));
    return local_numel(*whole) / static_cast<double>(std::max<int64_t>(1, whole->local_shape()[rows]));
  };
  const double of_query = per_row(specs_.query), of_output = per_row(specs_.output);
  const double keys_and_values = everywhere_ ? 0 : per_row(specs_.key) + per_row(specs_.value);
  const double sums = even_sums(of_query, query.global_shape().back());
  const auto work = [&](const AttentionWork::Extents& extents) {
    return std::make_unique<const AttentionWork>(query_blocks, key_blocks, call_.is_causal, !specs_.mask, extents);
  };
  work_ = work({of_query, keys_and_values, of_output + sums});
  // Queries are sent with the gradients of their results, two sums a row, and return as gradients.
  backward_work_ = work({of_query + of_output + 2 * sums, 2 * keys_and_values, of_query});
}

void AttentionRing::choose_result_specs() {
  const ShardSpec& query = *specs_.query;
  output_ = sums_over(specs_.output, merged_);
  grad_query_ = sums_over(specs_.query, merged_);
  // Whatever cuts the queries, and not the keys, holds addends of the keys' gradients.
  std::vector<int64_t> used;
  for (int64_t d = 0; d <= query.ndim() - 2; ++d)
    used.insert(used.end(), query.cut(d).mesh_dims.begin(), query.cut(d).mesh_dims.end());
  grad_key_ = sums_over(specs_.key, used);
  grad_value_ = sums_over(specs_.value, used);
  if (!specs_.mask) return;
  used.insert(used.end(), merged_.begin(), merged_.end());
  grad_mask_ = sums_over(specs_.mask, used);
}

// Steps

// A peer is given by its places ahead of this rank in the ring; below 0 it is behind.
struct AttentionRing::Messages {
  const AttentionRing& ring;
  bool packs;
  std::vector<Message> sends = {}, receives = {};
  std::vector<int64_t> sent_to = {}, received_from = {};  // their peers

  void send(int64_t ahead, const at::Tensor& t) {
    if (t.numel() == 0) return;
    sends.push_back({ring.rank_ahead(ahead), packs ? t.contiguous() : t});
    sent_to.push_back(ahead);
  }
  at::Tensor receive(int64_t ahead, at::IntArrayRef shape, const at::TensorOptions& options) {
    at::Tensor t = at::empty(shape, options);
    if (t.numel() == 0) return t;
    receives.push_back({ring.rank_ahead(ahead), t});
    received_from.push_back(ahead);
    return t;
  }
  /// Memory for rows of a member's tensor that is like `own`.
  at::Tensor receive_rows(int64_t ahead, const Interval& rows, const at::Tensor& own) {
    std::vector<int64_t> shape = own.sizes().vec();
    shape[2] = rows.size();
    return receive(ahead, shape, own.options());
  }
};

AttentionRing::Messages AttentionRing::messages() const {
  return {*this, !specs_.query->mesh()->group().takes_strided()};
}

// The blocks that a rank holds, in four dims; the last three only backward.
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

// One step: keys of the member ahead, queries of the member behind, and what becomes of them. Results are those of
// queries, output and logsumexp, or backward their gradient.
struct AttentionRing::Step {
  at::Tensor key, value;
  at::Tensor query, grad_output, delta, logsumexp;
  at::Tensor key_gradients[2], visiting_results[2];           // go to the member ahead, and to the member behind
  at::Tensor returned_key_gradients[2], returned_results[2];  // of this rank's keys, and of the queries that it sent
};

void AttentionRing::exchange_inputs(const AttentionWork& work, int64_t step, const Blocks& b, Step& state,
                                    Messages& t) const {
  const int64_t next = next_rank(step), previous = previous_rank(step);
  if (!everywhere_) {
    const Interval required = work.seen(work.local_queries(me_, next), next),
                   given = work.seen(work.local_queries(previous, me_), me_);
    for (const at::Tensor& own : {b.key, b.value}) t.send(-step, b.keys(own, given));
    state.key = t.receive_rows(step, required, b.key);
    state.value = t.receive_rows(step, required, b.value);
  }
  const Interval sent = work.sent_queries(me_, next), visiting = work.sent_queries(previous, me_);
  const std::pair<const at::Tensor*, at::Tensor*> of_queries[] = {{&b.query, &state.query},
                                                                  {&b.grad_output, &state.grad_output},
                                                                  {&b.delta, &state.delta},
                                                                  {&b.logsumexp, &state.logsumexp}};
  for (const auto& [own, visitor] : of_queries) {
    if (!own->defined()) continue;
    if (!sent.empty()) t.send(step, b.queries(*own, sent));
    *visitor = t.receive_rows(-step, visiting, *own);
  }
}

void AttentionRing::rotate(std::vector<Step>& steps, const AttentionWork& work,
                           const std::function<void(int64_t, Messages&)>& inputs,
                           const std::function<void(int64_t)>& compute,
                           const std::function<void(int64_t, Messages&)>& results,
                           const std::function<void(int64_t)>& arrived) const {
  const int64_t size = work.size();
  if (size == 1) return compute(0);
  const TrafficScope moving(Traffic::kRing);
  Communicator& group = specs_.query->mesh()->group();
  const LeaveOutEqualSteps* const leave_out = LeaveOutEqualSteps::of(group);
  EqualStepsListener* const listener = leave_out != nullptr ? leave_out->listener() : nullptr;
  if (leave_out != nullptr && listener == nullptr) return compute(0);
  const EqualSteps equal(listener != nullptr ? work.kinds_of_steps(me_) : std::vector<int64_t>());
  std::vector<std::vector<int64_t>> sent_to, received_from;  // by step
  if (listener != nullptr) listener->ring_begins();
  for (int64_t s = 0; s <= size; ++s) {
    if (listener != nullptr) listener->step_begins();
    const int64_t periods = equal.periods_from(s), left_out = periods * equal.period();
    if (periods > 0 && listener->repeats(equal.period())) {
      listener->leave_out(equal.period(), periods, [&](bool sends, size_t step, size_t part, int64_t later) {
        const auto& peers = sends ? sent_to : received_from;
        const int64_t ahead = peers[peers.size() - equal.period() + step].at(part), more = later * equal.period();
        return rank_ahead(ahead > 0 ? ahead + more : ahead - more);
      });
      for (const int64_t held : {s, s - 1}) steps[held + left_out] = std::exchange(steps[held], {});
      s += left_out;
    }
    WorkPtr under_way;
    const bool asks = s + 1 < size, returns = s >= 2;
    if (asks || returns) {
      Messages t = messages();
      if (asks) inputs(s + 1, t);
      if (returns) results(s - 1, t);
      under_way = group.exchange_async(std::move(t.sends), std::move(t.receives));
      sent_to.push_back(std::move(t.sent_to));
      received_from.push_back(std::move(t.received_from));
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
    const int64_t next = next_rank(s), previous = previous_rank(s);
    const Interval rows = work_->local_queries(me_, next), keys = work_->seen(rows, next);
    if (!rows.empty() && !keys.empty()) {
      const bool here = everywhere_ || s == 0;
      AttentionSums part = sums.rows(rows.begin - b.query_begin, rows.size());
      attend(call, {rows.begin, keys.begin}, b.queries(b.query, rows), here ? b.keys(b.key, keys) : step.key,
             here ? b.keys(b.value, keys) : step.value, mask_of(b.mask, rows, keys), b.shift_of(rows), part);
    }
    const Interval visiting = s == 0 ? Interval{0, 0} : work_->sent_queries(previous, me_);
    if (!visiting.empty()) {
      const Interval own = work_->seen(visiting, me_);
      AttentionSums part(step.query, value.size(-1));
      attend(call, {visiting.begin, own.begin}, step.query, b.keys(b.key, own), b.keys(b.value, own), {}, {}, part);
      step.visiting_results[0] = part.output.to(query.scalar_type());
      step.visiting_results[1] = part.logsumexp;
    }
    for (at::Tensor* used : {&step.key, &step.value, &step.query}) used->reset();
  };
  const auto results = [&](int64_t s, Messages& t) {
    Step& step = steps[s];
    for (const at::Tensor& result : step.visiting_results) {
      if (result.defined()) t.send(-s, result);
    }
    const Interval sent = work_->sent_queries(me_, next_rank(s));
    if (sent.empty()) return;
    step.returned_results[0] = t.receive_rows(s, sent, sums.output.narrow(2, 0, 0).to(query.scalar_type()));
    step.returned_results[1] = t.receive_rows(s, sent, sums.logsumexp);
  };
  const auto arrived = [&](int64_t s) {
    const Interval sent = work_->sent_queries(me_, next_rank(s));
    if (!sent.empty()) {
      sums.add(sent.begin - b.query_begin, steps[s].returned_results[0], steps[s].returned_results[1]);
    }
    steps[s] = {};
  };
  rotate(
      steps, *work_, [&](int64_t s, Messages& t) { exchange_inputs(*work_, s, b, steps[s], t); }, compute, results,
      arrived);
  merge(sums.output, sums.logsumexp);
  return {sums.output.to(query.scalar_type()).reshape(specs_.output->local_shape()),
          sums.logsumexp.reshape(specs_.logsumexp->local_shape())};
}

void AttentionRing::merge(at::Tensor& output, at::Tensor& logsumexp) const {
  const TrafficScope moving(Traffic::kAllReduce);
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

// A backward pass: what this rank holds, and the gradients it has summed so far.
struct AttentionRing::Backward {
  const AttentionRing& ring;
  const AttentionWork& work;
  AttentionCall call;
  Blocks b;
  at::Tensor output;
  AttentionGradients own;
  std::vector<Step> steps;

  static at::Tensor zeros_of(const at::Tensor& t) {
    return at::zeros(t.sizes(), t.options().dtype(attention_sum_type(t.scalar_type())));
  }
  Interval local_queries(int64_t s) const { return work.local_queries(ring.me_, ring.next_rank(s)); }
  Interval sent_queries(int64_t s) const { return work.sent_queries(ring.me_, ring.next_rank(s)); }
  Interval visiting_queries(int64_t s) const {
    return s == 0 ? Interval{0, 0} : work.sent_queries(ring.previous_rank(s), ring.me_);
  }
  /// The own keys that are sent to the member s behind.
  Interval sent_keys(int64_t s) const {
    const int64_t previous = ring.previous_rank(s);
    return ring.everywhere_ ? Interval{0, 0} : work.seen(work.local_queries(previous, ring.me_), ring.me_);
  }

  void compute_local(int64_t s) {
    Step& step = steps[s];
    const Interval rows = local_queries(s), keys = work.seen(rows, ring.next_rank(s));
    if (rows.empty() || keys.empty()) return;
    const bool here = ring.everywhere_ || s == 0;
    const at::Tensor k = here ? b.keys(b.key, keys) : step.key, v = here ? b.keys(b.value, keys) : step.value;
    const AttentionGradients into{b.queries(own.query, rows), here ? b.keys(own.key, keys) : zeros_of(k),
                                  here ? b.keys(own.value, keys) : zeros_of(v), ring.mask_of(own.mask, rows, keys)};
    attend_backward(call, {rows.begin, keys.begin}, b.queries(b.grad_output, rows), b.queries(b.query, rows), k, v,
                    ring.mask_of(b.mask, rows, keys), b.shift_of(rows), b.queries(output, rows),
                    b.queries(b.logsumexp, rows), into);
    if (here) return;
    step.key_gradients[0] = into.key.to(b.key.scalar_type());
    step.key_gradients[1] = into.value.to(b.value.scalar_type());
  }
  void compute_visiting(int64_t s) {
    Step& step = steps[s];
    const Interval rows = visiting_queries(s);
    if (rows.empty()) return;
    const Interval seen = work.seen(rows, ring.me_);
    const AttentionGradients into{zeros_of(step.query), b.keys(own.key, seen), b.keys(own.value, seen), {}};
    attend_backward(call, {rows.begin, seen.begin}, step.grad_output, step.query, b.keys(b.key, seen),
                    b.keys(b.value, seen), {}, {}, delta_as_output(step.grad_output, step.delta), step.logsumexp, into);
    step.visiting_results[0] = into.query.to(b.query.scalar_type());
  }
  void compute(int64_t s) {
    compute_local(s);
    compute_visiting(s);
    Step& step = steps[s];
    for (at::Tensor* used : {&step.key, &step.value, &step.query, &step.grad_output, &step.delta, &step.logsumexp})
      used->reset();
  }
  void exchange_results(int64_t s, Messages& t) {
    Step& step = steps[s];
    if (step.visiting_results[0].defined()) t.send(-s, step.visiting_results[0]);
    const Interval sent = sent_queries(s);
    if (!sent.empty()) step.returned_results[0] = t.receive_rows(s, sent, b.query);
    for (const at::Tensor& gradient : step.key_gradients) {
      if (gradient.defined()) t.send(s, gradient);
    }
    const Interval keys = sent_keys(s);
    if (keys.empty()) return;
    step.returned_key_gradients[0] = t.receive_rows(-s, keys, b.key);
    step.returned_key_gradients[1] = t.receive_rows(-s, keys, b.value);
  }
  void add_returned(int64_t s) {
    const Step& step = steps[s];
    const Interval sent = sent_queries(s);
    if (!sent.empty()) b.queries(own.query, sent) += step.returned_results[0];
    if (step.returned_key_gradients[0].defined()) {
      const Interval keys = sent_keys(s);
      b.keys(own.key, keys) += step.returned_key_gradients[0];
      b.keys(own.value, keys) += step.returned_key_gradients[1];
    }
    steps[s] = {};
  }
};

AttentionRing::Gradients AttentionRing::backward(const at::Tensor& grad_output, const at::Tensor& query,
                                                 const at::Tensor& key, const at::Tensor& value, const at::Tensor& mask,
                                                 const at::Tensor& output, const at::Tensor& logsumexp,
                                                 uint64_t dropout_key, bool needs_mask) const {
  const AttentionWork& work = *backward_work_;
  Backward pass{*this, work, call_, blocks(query, key, value, mask), attention_packed_rows(output), {}, {}};
  pass.call.dropout_key = dropout_key;
  Blocks& b = pass.b;
  b.grad_output = attention_four_dims(grad_output).contiguous();
  b.logsumexp = logsumexp.reshape(b.query.sizes().slice(0, 3));
  if (work.size() > 1) b.delta = (b.grad_output.to(b.logsumexp.scalar_type()) * pass.output).sum(-1);
  AttentionGradients& own = pass.own;
  own = {Backward::zeros_of(b.query), Backward::zeros_of(b.key), Backward::zeros_of(b.value), {}};
  if (needs_mask) own.mask = Backward::zeros_of(b.mask);
  pass.steps.resize(work.size());

  rotate(
      pass.steps, work, [&](int64_t s, Messages& t) { exchange_inputs(work, s, b, pass.steps[s], t); },
      [&](int64_t s) { pass.compute(s); }, [&](int64_t s, Messages& t) { pass.exchange_results(s, t); },
      [&](int64_t s) { pass.add_returned(s); });

  Gradients gradients{own.query.to(query.scalar_type()).reshape(query.sizes()),
                      own.key.to(key.scalar_type()).reshape(key.sizes()),
                      own.value.to(value.scalar_type()).reshape(value.sizes()),
                      {}};
  if (needs_mask) gradients.mask = attention_mask_gradient(own.mask, mask, query);
  return gradients;
}

}  // namespace moonhalo
