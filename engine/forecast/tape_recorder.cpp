// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/tape_recorder.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "moonhalo/engine/comm/fake/fake_subgroup.h"
#include "moonhalo/engine/forecast/least_time.h"
#include "moonhalo/engine/forecast/operator_work.h"
#include "moonhalo/engine/profile/event_names.h"
#include "moonhalo/engine/profile/macs.h"
#include "moonhalo/engine/profile/memory.h"
#include "moonhalo/engine/profile/profile_context.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {
namespace {

bool any_shard(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), is_shard_tensor);
}

bool any_meta(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.is_meta(); });
}

std::vector<at::Tensor> blocks_of(std::vector<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) tensor = is_shard_tensor(tensor) ? shard_impl(tensor)->local() : tensor;
  return tensors;
}

}  // namespace

TapeRecorder::TapeRecorder(const Communicator& world, bool keeps_step) : keeps_step_(keeps_step) {
  tape_.rank = world.rank();
  tape_.ranks = world.size();
  if (counts_memory()) tape_.live = memory_use().live;
  recorder_ = std::make_unique<Recorder>(1, nullptr, kMostEvents, false, static_cast<RecordListener*>(this));
  listen_to_work(this);
  joined_copies_.emplace();
}

TapeRecorder::~TapeRecorder() {
  if (recorder_) listen_to_work(nullptr);
}

void TapeRecorder::check_whole(const Tape& tape) {
  TORCH_CHECK(tape.whole, "a tape of one step: more than ", kMostEvents, " events\n  have  rank ", tape.rank, " of ",
              tape.ranks, "\n  fix   take fewer ranks, or fewer samples in a step");
}

Tape TapeRecorder::take(bool allows_part) {
  left_out_.reset();
  joined_copies_.reset();
  listen_to_work(nullptr);
  const RankRecord record = recorder_->stop();
  recorder_.reset();
  tape_.whole = !record.full && !is_full_;
  if (!allows_part) check_whole(tape_);
  const EventNames names(record);
  tape_.modules.clear();
  for (size_t i = 0; i < record.modules.size(); ++i) {
    tape_.modules.push_back(i == 0 ? "" : names.module_path(static_cast<uint16_t>(i)));
  }
  return std::move(tape_);
}

template <typename What>
void TapeRecorder::add(What what) {
  const std::lock_guard lock(mutex_);
  tape_.events.push_back({recorder_->phase(), recorder_->module(), std::move(what)});
}

void TapeRecorder::operator_begins(const at::RecordFunction& call) {
  OpenOperator open;
  if (in_counted_ == 0) {
    open.inputs = tensors_among(call.inputs());
    open.arguments.assign(call.inputs().begin(), call.inputs().end());
    if (keeps_step_ && !any_shard(open.inputs)) {
      look_at_tensors(open.arguments, [&](const at::Tensor& tensor) { open.places.push_back(place_of(tensor)); });
    }
    open.macs = count_macs(mac_rule(call.name()), call.inputs());
    open.work = work_;
    open.counted = work_of(call.name()) != WorkKind::kOther && !any_shard(open.inputs) && !any_meta(open.inputs);
  }
  in_counted_ += open.counted || in_counted_ > 0 ? 1 : 0;
  open_.push_back(std::move(open));
}

void TapeRecorder::operator_ended(const at::RecordFunction& call) {
  if (open_.empty()) return;
  OpenOperator open = std::move(open_.back());
  open_.pop_back();
  if (recorder_->phase() == Phase::kOptimizer) note_optimizer_memory(open.inputs);
  if (in_counted_ > 0 && --in_counted_ > 0) return;
  if (work_ > open.work) return;  // it called others that are on the tape
  const std::string_view name = call.name();
  std::vector<at::Tensor> out = tensors_among(call.outputs());
  std::vector<at::Tensor>& in = open.inputs;
  const bool own = name.starts_with("moonhalo::");
  if ((in.empty() && out.empty()) || any_meta(in) || any_meta(out) || !does_work(call)) return;
  if (any_shard(in) || any_shard(out)) {
    if (!own) return;
    in = blocks_of(std::move(in));
    out = blocks_of(std::move(out));
  }
  if (overwrites_first(name) && !in.empty()) in.erase(in.begin());
  const bool counted = open.counted && !out.empty();
  TapeOperator what;
  what.work = counted ? work_of(name) : WorkKind::kOther;
  what.macs = counted ? open.macs : 0;
  what.item = static_cast<uint8_t>((in.empty() ? out : in).empty() ? 1 : (in.empty() ? out : in)[0].element_size());
  what.known = !own;
  const OperatorMemory memory = memory_of(in, out);
  what.bytes = memory.bytes;
  what.working_set = memory.working_set;
  const std::string shapes = shapes_key(in, out);
  if (what.known) keep_call(call, open, shapes);
  add_operator(std::string(name), what, shapes);
}

// RecordFunction gives copies of schemas, which take as long as all else here: each operator is asked once.
bool TapeRecorder::does_work(const at::RecordFunction& call) {
  asked_.assign(call.name()).append(".").append(call.overload_name());
  const auto [found, added] = operators_.try_emplace(asked_, false);
  if (added) found->second = !does_no_work(call);
  return found->second;
}

void TapeRecorder::keep_call(const at::RecordFunction& call, const OpenOperator& open, const std::string& shapes) {
  const std::optional<c10::OperatorName> name = call.operator_name();
  if (!name) return;
  const std::string key = std::string(call.name()) + " " + shapes;
  const auto [found, added] = kept_calls_.try_emplace(key);
  if (added) found->second = {key, *name, without_memory(open.arguments)};
  if (!keeps_step_) return;
  StepCalls::Event event{.call = {key, *name, without_memory(open.arguments)}, .arguments = open.places};
  look_at_tensors(std::vector<c10::IValue>(call.outputs().begin(), call.outputs().end()),
                  [&](const at::Tensor& tensor) { event.results.push_back(place_of(tensor)); });
  const std::lock_guard lock(mutex_);
  step_.events.push_back(std::move(event));
}

// A block that is not known was there before the step.
StepCalls::Place TapeRecorder::place_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return {};
  const void* const memory = tensor.storage().data();
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(memory);
  if (found != blocks_.end()) return {found->second, tensor.storage_offset()};
  const auto [old, added] = blocks_before_.try_emplace(
      memory, std::numeric_limits<uint32_t>::max() - static_cast<uint32_t>(blocks_before_.size()));
  if (added) step_.before[old->second] = static_cast<int64_t>(tensor.storage().nbytes());
  return {old->second, tensor.storage_offset()};
}

std::vector<OperatorCall> TapeRecorder::take_calls() {
  std::vector<OperatorCall> all;
  for (auto& [key, call] : kept_calls_) all.push_back(std::move(call));
  kept_calls_.clear();
  return all;
}

// Adds up the memory that the optimizer uses and that was there before the step: parameters and states, but no
// gradients.
void TapeRecorder::note_optimizer_memory(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : blocks_of(tensors)) {
    if (!tensor.has_storage() || !tensor.device().is_cpu()) continue;
    const void* const memory = tensor.storage().data();
    const std::lock_guard lock(mutex_);
    if (blocks_.contains(memory) || !optimizer_memory_.insert(memory).second) continue;
    tape_.optimizer += static_cast<int64_t>(tensor.storage().nbytes());
  }
}

void TapeRecorder::worked(const char* kernel, int64_t macs, int64_t bytes) {
  if (in_counted_ > 0) return;
  TapeOperator what;
  const std::string name = kernel;
  what.work = macs > 0 && name.find("attention") != std::string::npos ? WorkKind::kAttention : WorkKind::kOther;
  what.macs = macs;
  what.bytes = what.working_set = bytes;
  add_operator(name, what, "");
}

void TapeRecorder::add_operator(const std::string& name, TapeOperator what, const std::string& key) {
  ++work_;
  what.name = number_of(name);
  what.key = number_of(key);
  what.times = EqualCopies::current();
  add(what);
}

uint32_t TapeRecorder::number_of(const std::string& text) {
  if (text.empty()) return 0;
  const auto [found, added] = numbers_.try_emplace(text, static_cast<uint32_t>(tape_.names.size()));
  if (added) tape_.names.push_back(text);
  return found->second;
}

uint32_t TapeRecorder::group_of(const CommObserver::Call& call) {
  const auto known = groups_.find(call.group);
  if (known != groups_.end()) return known->second;
  std::vector<int64_t> ranks = pretended_ranks(*call.ranks);
  if (ranks.empty()) {
    ranks.resize(call.size);
    std::iota(ranks.begin(), ranks.end(), int64_t{0});
  }
  const uint32_t group = tape_.group_number(TapeGroup::of(ranks));
  members_.resize(tape_.groups.size());
  calls_.resize(tape_.groups.size());
  members_[group] = std::move(ranks);
  return groups_[call.group] = group;
}

void TapeRecorder::verb_called(const CommObserver::Call& call, uint32_t number) {
  const uint32_t group = group_of(call);
  const uint32_t count = calls_[group]++;
  if (call.verb != CommStats::kExchange) {
    add(TapeVerb{.verb = static_cast<Verb>(call.verb),
                 .group = group,
                 .number = count,
                 .data = call.data,
                 .sent = call.bytes,
                 .messages = call.messages,
                 .item = static_cast<uint8_t>(call.item),
                 .root = call.root,
                 .counted = call.counted,
                 .traffic = call.traffic});
    return;
  }
  TapeExchange exchange{
      .group = group, .number = count, .id = made_exchanges_++, .counted = call.counted, .traffic = call.traffic};
  const auto parts = [&](const std::vector<CommObserver::Part>& messages) {
    std::vector<TapePart> all;
    for (const auto& [peer, bytes] : messages)
      all.push_back({static_cast<int32_t>(members_[group][peer] - members_[group][call.rank]), bytes});
    return all;
  };
  exchange.sends = parts(call.sends);
  exchange.receives = parts(call.receives);
  exchanges_[number] = exchange.id;
  add(std::move(exchange));
}

void TapeRecorder::exchange_awaited(uint32_t number) {
  const auto found = exchanges_.find(number);
  if (found != exchanges_.end()) add(TapeWait{found->second});
}

void TapeRecorder::step_begins() {
  const std::lock_guard lock(mutex_);
  steps_.push_back({tape_.events.size(), made_blocks_, made_exchanges_});
}

// Where the last but one begins, and the last, and where it ends.
std::array<TapePlace, 3> TapeRecorder::last_periods(int64_t period) const {
  const auto end = steps_.end() - 1;
  return {end[-2 * period], end[-period], *end};
}

bool TapeRecorder::repeats(int64_t period) const {
  if (is_full_) return true;
  return std::ssize(steps_) > 2 * period && equal_but_for_peers(tape_, last_periods(period), period);
}

void TapeRecorder::leave_out(int64_t period, int64_t periods, const PeerOf& peer_of) {
  const std::lock_guard lock(mutex_);
  if (is_full_) return;
  const auto [before, last, end] = last_periods(period);
  const auto count = static_cast<int64_t>(end.events - last.events);
  is_full_ = static_cast<int64_t>(end.events) + periods * count > kMostEvents;
  if (is_full_) return;
  const auto offset_of = [&](uint32_t group, bool sends, size_t step, size_t part, int64_t later) {
    return static_cast<int32_t>(members_[group].at(peer_of(sends, step, part, later)) - tape_.rank);
  };
  const uint32_t group = repeat_period(tape_, last, end, periods, offset_of);
  const auto exchanges = static_cast<uint32_t>(period * periods);
  calls_[group] += exchanges;
  made_exchanges_ += exchanges;
  const uint32_t moved = static_cast<uint32_t>(periods) * (end.blocks - last.blocks);
  made_blocks_ += moved;
  for (auto& [memory, block] : blocks_) {
    if (block > before.blocks) block += moved;
  }
  steps_ = {{tape_.events.size(), made_blocks_, made_exchanges_}};
}

void TapeRecorder::changed(const void* block, int64_t bytes) {
  const bool mine = std::this_thread::get_id() == thread_;
  const std::lock_guard lock(mutex_);
  TapeBlock what{.bytes = bytes};
  if (bytes > 0) {
    what.id = blocks_[block] = ++made_blocks_;
  } else if (const auto found = blocks_.find(block); found != blocks_.end()) {
    what.id = found->second;
    blocks_.erase(found);
  }
  if (keeps_step_ && bytes > 0) {
    step_.events.push_back({.kind = StepCalls::Event::kMade, .block = what.id, .bytes = bytes});
  } else if (keeps_step_) {
    const auto old = blocks_before_.extract(block);
    const uint32_t number = what.id > 0 || old.empty() ? what.id : old.mapped();
    if (number > 0) step_.events.push_back({.kind = StepCalls::Event::kFreed, .block = number});
  }
  // Threads that read for the rank run beside its parts.
  const bool known = mine && recorder_ != nullptr;
  tape_.events.push_back(
      {known ? recorder_->phase() : Phase::kReading, known ? recorder_->module() : uint32_t{0}, what});
}

StepTapes::StepTapes(const Communicator& world, int64_t steps, std::function<void()> done, std::function<void()> settle,
                     int64_t timed)
    : world_(world),
      steps_(steps),
      timed_(timed),
      done_(std::move(done)),
      settle_(std::move(settle)),
      recorder_(std::make_unique<TapeRecorder>(world, timed > 0)) {
  watch_steps(this, [this](int64_t ended) { end_step(ended); });
}

StepTapes::~StepTapes() {
  watch_steps(this, nullptr);
  if (profile_context->fake_call_time == &fake_calls_) profile_context->fake_call_time = nullptr;
}

void StepTapes::end_step(int64_t ended) {
  if (ended > steps_ + timed_) return;
  if (ended > steps_) {
    end_timed_step();
    if (ended == steps_ + timed_) return done_();
    return begin_timed_step();
  }
  ended_ = ended;
  if (settle_) settle_();
  // The first step has what comes before it, too, such as the division of parameters over thousands of ranks. Too many
  // events are an error where no later step ends.
  last_ = recorder_->take(ended == 1 && steps_ > 1);
  last_calls_ = recorder_->take_calls();
  last_step_ = recorder_->take_step();
  recorder_.reset();
  hash_before_ = std::exchange(last_hash_, last_.hash_without_memory());
  if (ended < steps_) {
    recorder_ = std::make_unique<TapeRecorder>(world_, timed_ > 0);
  } else if (timed_ == 0) {
    done_();
  } else {
    begin_timed_step();
  }
}

void StepTapes::begin_timed_step() {
  fake_calls_.begin_step();
  profile_context->fake_call_time = &fake_calls_;
  timed_from_ = seconds_of(ClockOf::kThread);
}

void StepTapes::end_timed_step() {
  host_times_.push_back(seconds_of(ClockOf::kThread) - timed_from_ - fake_calls_.seconds());
  profile_context->fake_call_time = nullptr;
  if (settle_) settle_();
}

double StepTapes::host_seconds() const { return host_times_.empty() ? 0 : std::max(0.0, median_of(host_times_)); }

Tape StepTapes::take() {
  watch_steps(this, nullptr);
  if (ended_ == 0) {
    last_ = recorder_->take();
    last_calls_ = recorder_->take_calls();
    last_step_ = recorder_->take_step();
  }
  recorder_.reset();
  TapeRecorder::check_whole(last_);
  return std::move(last_);
}

}  // namespace moonhalo
