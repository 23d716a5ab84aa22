// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/training/parameter_unit.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "moonhalo/engine/model/model_context.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/view_copies.h"
#include "moonhalo/engine/training/backward_end_callbacks.h"

namespace moonhalo {

// Tells what one rank's units do at the moment.
struct UnitPasses {
  enum Kind { kForward, kBackward };
  std::vector<ParameterUnitPtr> under_way;  // forwards, the outermost first
  std::vector<ParameterUnitPtr> open;       // gathered in backward
  std::vector<ParameterUnitPtr> in_flight;  // all ranks end a gather that no unit uses at the same point
  std::weak_ptr<ParameterUnit> last[2];
  BackwardEndCallbacks ends;
  uint64_t gathers = 0;

  // The order of the next pass is taken to be that of this one.
  void reached(Kind kind, const ParameterUnitPtr& unit) {
    const ParameterUnitPtr before = last[kind].lock();
    if (before == unit) return;
    if (before) before->next_[kind] = unit;
    last[kind] = unit;
  }
  void ended(Kind kind) {
    if (const ParameterUnitPtr before = last[kind].lock()) before->next_[kind].reset();
    last[kind].reset();
    for (const ParameterUnitPtr& unit : std::exchange(in_flight, {})) {
      unit->finish();
      if (kind == kBackward ? unit->options_.reshard_after_backward : unit->options_.reshard_after_forward)
        unit->reshard();
    }
  }
  // The units that enclose this one still need their parameters, and so do those within it: one that gives its result
  // as the outer one's is reached before that.
  void close_others(const ParameterUnit* unit) {
    std::erase_if(open, [&](const ParameterUnitPtr& other) {
      if (unit != nullptr && (other.get() == unit || other->encloses(*unit) || unit->encloses(*other))) return false;
      if (other->options_.reshard_after_backward) other->reshard();
      other->reducer_->flush();
      return true;
    });
  }
  void await_end() {
    ends.await([this] { backward_ended(); }, [this] { backward_failed(); });
  }
  void backward_ended() {
    if (ends.waits()) return;  // within another: a segment that was computed again
    close_others(nullptr);
    ended(kBackward);
  }
  // The pass that comes next receives what is sent.
  void backward_failed() {
    if (ends.waits()) return;
    for (const ParameterUnitPtr& unit : std::exchange(open, {})) {
      if (unit->options_.reshard_after_backward) unit->reshard();
    }
    last[kBackward].reset();
  }
  // This unit and those within it are no longer under way.
  void left(const ParameterUnit* unit) {
    const auto self =
        std::find_if(under_way.begin(), under_way.end(), [&](const auto& one) { return one.get() == unit; });
    under_way.erase(self, under_way.end());
  }
};

ParameterUnit::ParameterUnit(const std::vector<at::Tensor>& parameters, const FullyShardOptions& options)
    : options_(options), reducer_(UnitReducer::of(parameters, options.reshard_after_backward, options.gradients)) {
  for (const at::Tensor& parameter : parameters) {
    if (!is_shard_tensor(parameter) || has_unsharded_cache(parameter)) continue;
    if (!options.param_dtype && !stored_cut(*spec(parameter))) continue;
    entries_.push_back({parameter});
    attach_unsharded_cache(parameter, entries_.back().kept, 0);  // so that no later unit takes it
    entries_.back().drop();
  }
}

bool ParameterUnit::encloses(const ParameterUnit& other) const {
  return std::any_of(other.outer_.begin(), other.outer_.end(),
                     [&](const auto& unit) { return unit.lock().get() == this; });
}

// Returns what is gathered, if it is there: a forward that recorded nothing leaves no cast.
at::Tensor ParameterUnit::Entry::source(bool casts) const {
  if (!casts || cast.defined()) return casts ? cast : parameter;
  auto impl = last ? last->lock() : c10::intrusive_ptr<c10::TensorImpl>();
  return impl ? at::Tensor(std::move(impl)) : at::Tensor();
}

void ParameterUnit::Entry::drop() {
  kept->drop();
  count.reset();
}

// Made for every forward, since each has a graph of its own; they all look into what was gathered for one of them.
// `again`: also where there is one, made to be gathered in advance. A forward that is a segment (recompute.h) makes its
// own, or its second run would use other tensors.
void ParameterUnit::cast(bool again) {
  if (!options_.param_dtype) return;
  for (Entry& entry : entries_) {
    const at::Tensor& parameter = entry.parameter;
    const bool records = c10::GradMode::is_enabled() && parameter.requires_grad();
    const bool unwritten = entry.count && writes_so_far(*entry.count) == entry.writes;
    const bool is_known = entry.cast.defined() && unwritten && entry.cast.requires_grad() == records;
    if (!parameter.is_floating_point() || (is_known && !(again && records))) continue;
    entry.cast = parameter.to(*options_.param_dtype);
    if (unwritten && entry.kept->whole.defined()) attach_unsharded_cache(entry.cast, entry.kept, entry.kept->of);
  }
}

at::Tensor ParameterUnit::cast_of(const at::Tensor& parameter) const {
  for (const Entry& entry : entries_) {
    if (entry.parameter.is_same(parameter) && entry.cast.defined()) return entry.cast;
  }
  return parameter;
}

void ParameterUnit::start() {
  if (flight_) return;
  UnitPasses& passes = *model_context->unit_passes;
  std::vector<at::Tensor> missing;
  std::vector<Entry*> entries;
  std::vector<SpecPtr> specs;
  if (!BackwardEndCallbacks::under_way()) cast(/*again=*/false);
  for (Entry& entry : entries_) {
    const at::Tensor source = entry.source(options_.param_dtype.has_value());
    if (!source.defined() || !stored_cut(*spec(source))) continue;
    const UnshardedCache* kept = unsharded_cache(source);
    const SpecPtr whole = whole_spec(spec(source));
    if (kept != nullptr && kept->spec == whole) continue;
    entry.drop();
    missing.push_back(source);
    entries.push_back(&entry);
    specs.push_back(whole);
  }
  if (missing.empty()) return;
  const uint64_t values = ++passes.gathers;
  for (size_t i = 0; i < entries.size(); ++i) {
    Entry& entry = *entries[i];
    attach_unsharded_cache(missing[i], entry.kept, values);  // from here on a write makes the gathered values old
    entry.count = count_writes(shard_impl(entry.parameter)->local());
    entry.writes = writes_so_far(*entry.count);
  }
  flight_ = std::make_unique<Flight>(Flight{UnitGather(missing), std::move(entries), std::move(specs), values});
  passes.in_flight.push_back(shared_from_this());
}

bool gathers_parameters() { return model_context->unit_passes->gathers > 0; }

void ParameterUnit::finish() {
  if (!flight_) return;
  std::erase(model_context->unit_passes->in_flight, shared_from_this());
  const std::unique_ptr<Flight> flight = std::move(flight_);
  const std::vector<at::Tensor> whole = flight->gather.finish();
  for (size_t i = 0; i < whole.size(); ++i) {
    flight->entries[i]->kept->keep(whole[i], flight->specs[i], flight->values);
  }
}

void ParameterUnit::reshard() {
  for (Entry& entry : entries_) entry.drop();
}

void ParameterUnit::reach() {
  UnitPasses& passes = *model_context->unit_passes;
  const auto kind = BackwardEndCallbacks::under_way() ? UnitPasses::kBackward : UnitPasses::kForward;
  if (kind == UnitPasses::kBackward) {
    passes.await_end();
    passes.close_others(this);
    if (std::find(passes.open.begin(), passes.open.end(), shared_from_this()) == passes.open.end())
      passes.open.push_back(shared_from_this());
  }
  passes.reached(kind, shared_from_this());
  finish();  // what was begun earlier may be old by now
  start();
  finish();
  ParameterUnitPtr next = next_[kind].lock();
  for (int64_t i = 0; i < options_.prefetch && next && next.get() != this; ++i) {
    next->start();
    next = next->next_[kind].lock();
  }
}

void ParameterUnit::before_forward() {
  UnitPasses& passes = *model_context->unit_passes;
  passes.left(this);  // of an earlier forward that threw before its end was reported
  // A segment that runs again in backward does so outside of the forwards that it was in.
  if (!BackwardEndCallbacks::under_way()) outer_.assign(passes.under_way.begin(), passes.under_way.end());
  passes.under_way.push_back(shared_from_this());
  try {
    finish();
    cast(/*again=*/true);
    reach();
  } catch (...) {
    forward_failed();
    throw;
  }
}

void ParameterUnit::after_forward(at::TensorList results) {
  UnitPasses& passes = *model_context->unit_passes;
  passes.left(this);
  const bool within_backward =
      BackwardEndCallbacks::under_way();  // a segment that is computed again: its backward follows
  if (!within_backward && options_.reshard_after_forward) reshard();
  for (Entry& entry : entries_) {
    if (entry.cast.defined()) entry.last = entry.cast.getIntrusivePtr();
    entry.cast = at::Tensor();
  }
  if (!within_backward && passes.under_way.empty()) passes.ended(UnitPasses::kForward);
  for (const at::Tensor& result : results) {
    if (!result.defined() || !result.requires_grad() || result.is_leaf()) continue;
    // The graph keeps the unit: a script may let go of its module before backward, and garbage is collected at other
    // times on other ranks.
    result.register_hook([unit = shared_from_this()](const at::Tensor&) { unit->reach(); });
  }
}

void ParameterUnit::forward_failed() {
  UnitPasses& passes = *model_context->unit_passes;
  passes.left(this);
  // The order stays that of the last pass. What is sent is received by the pass that comes next.
  if (passes.under_way.empty()) passes.last[UnitPasses::kForward].reset();
}

}  // namespace moonhalo
