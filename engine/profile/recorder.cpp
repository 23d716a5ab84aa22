// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/recorder.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/profile/event_names.h"
#include "moonhalo/engine/profile/memory_note.h"
#include "moonhalo/engine/profile/nvtx.h"
#include "moonhalo/engine/profile/profile_clock.h"
#include "moonhalo/engine/profile/profile_context.h"

namespace moonhalo {

namespace detail {
std::atomic<int> hook_users = 0;
}

namespace {

using StepWatch = ProfileContext::StepWatch;

constexpr size_t kMostNumbers = UINT16_MAX;  // of modules and lines

// Around each backward function there is one event more, of the engine of autograd.
constexpr const char kAroundBackward[] = "autograd::engine::";

// Refuses before anything is watched: what another recorder watches goes on.
RankRecord new_record(bool nvtx) {
  TORCH_CHECK(profile_context->recorder == nullptr,
              "profile: this rank records already\n  have  two profilers\n  fix   stop the first one before another "
              "starts");
  const std::string problem = nvtx ? problem_of_nvtx("profile") : "";
  TORCH_CHECK_NOT_IMPLEMENTED(problem.empty(), problem);
  return {};
}

std::unique_ptr<at::ObserverContext> enter_call(const at::RecordFunction& call) {
  if (Recorder* recorder = Recorder::of_this_rank()) recorder->begin_operator(call);
  return nullptr;
}

void leave_call(const at::RecordFunction& call, at::ObserverContext*) {
  if (Recorder* recorder = Recorder::of_this_rank()) recorder->end_operator(call);
}

}  // namespace

Recorder* Recorder::of_this_rank() { return profile_context->recorder; }

Recorder::Recorder(int64_t step, LineReader read_line, int64_t most_events, bool nvtx, RecordListener* listener)
    : listener_(listener),
      record_(new_record(nvtx)),
      memory_(listener),
      read_line_(std::move(read_line)),
      most_events_(static_cast<size_t>(most_events)),
      nvtx_(nvtx) {
  modules_by_key_.resize(1);
  modules_by_name_.resize(1);
  step_ = static_cast<uint16_t>(std::min(step, RankRecord::kLastStep));
  begin(this, EventKind::kStep, name_number("step"));
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(enter_call, leave_call)
          .needsInputs(true)
          .needsOutputs(listener_ != nullptr)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
  set_comm_observer(this);
  profile_context->recorder = this;
  ++detail::hook_users;
}

Recorder::~Recorder() {
  if (running_) stop();
}

RankRecord Recorder::stop(bool step_ended) {
  if (running_) {
    running_ = false;
    at::removeCallback(callback_);
    set_comm_observer(nullptr);
    profile_context->recorder = nullptr;
    --detail::hook_users;
    if (step_ended && !record_.full) record_.last_step = step_;
    record_.memory = memory_.take();
    close_all(profile_clock());
  }
  return std::move(record_);
}

void Recorder::close_all(int64_t now) {
  for (const Open& open : open_) record_.events[open.event].end = now;
  for (size_t i = 0; nvtx_ && i < open_.size(); ++i) pop_nvtx();
  open_.clear();
}

ProfileEvent* Recorder::begin(const void* owner, EventKind kind, uint32_t name) {
  if (record_.full) return nullptr;
  const int64_t now = profile_clock();
  if (record_.events.size() >= most_events_) {
    record_.full = true;
    close_all(now);
    return nullptr;
  }
  ProfileEvent event;
  event.begin = now;
  event.name = name;
  event.parent = open_.empty() ? ProfileEvent::kNoEvent : open_.back().event;
  event.module = module_;
  event.line = line_;
  event.step = step_;
  event.kind = kind;
  event.phase = phase_;
  open_.push_back({static_cast<uint32_t>(record_.events.size()), owner, module_, line_, phase_, in_operator_});
  record_.events.push_back(event);
  if (nvtx_) [[unlikely]]
    push_nvtx(record_.names[name].c_str());
  return &record_.events.back();
}

void Recorder::end(const void* owner) {
  if (open_.empty() || open_.back().owner != owner) return;
  const Open& open = open_.back();
  record_.events[open.event].end = profile_clock();
  if (nvtx_) [[unlikely]]
    pop_nvtx();
  module_ = open.module;
  line_ = open.line;
  phase_ = open.phase;
  in_operator_ = open.in_operator;
  open_.pop_back();
  place_memory();
}

void Recorder::next_step(int64_t step) {
  if (record_.full) return;
  const int64_t now = profile_clock();
  const std::vector<Open> going_on = open_;
  std::vector<ProfileEvent> copies;
  for (const Open& open : going_on) copies.push_back(record_.events[open.event]);
  close_all(now);
  record_.last_step = step_;
  record_.full = step > RankRecord::kLastStep;
  if (record_.full) return;
  step_ = static_cast<uint16_t>(step);
  made_node_.clear();
  first_node_ = -1;
  uint32_t parent = ProfileEvent::kNoEvent;
  for (size_t i = 0; i < going_on.size(); ++i) {
    ProfileEvent event = copies[i];
    event.begin = now;
    event.parent = parent;
    event.step = step_;
    event.value = -1;
    parent = static_cast<uint32_t>(record_.events.size());
    open_.push_back(going_on[i]);
    open_.back().event = parent;
    record_.events.push_back(event);
    if (nvtx_) push_nvtx(record_.names[event.name].c_str());
  }
}

void Recorder::begin_range(const void* owner, EventKind kind, std::string_view name, Phase phase) {
  ProfileEvent* event = begin(owner, kind, name_number(std::string(name)));
  if (event == nullptr || phase == Phase::kScript) return;
  event->phase = phase_ = phase;
  if (phase == Phase::kCheck) event->module = module_ = 0;  // the module's time is without it
  place_memory();
}

void Recorder::begin_module(const void* owner, uint16_t module) {
  ProfileEvent* event = begin(owner, EventKind::kModule, name_number(record_.modules[module].name));
  if (event == nullptr) return;
  event->module = module_ = module;
  if (phase_ == Phase::kScript) event->phase = phase_ = Phase::kForward;
  place_memory();
}

void Recorder::begin_operator(const at::RecordFunction& call) {
  const char* const text = call.name();
  if (record_.full ||
      (text[0] == 'a' && text[1] == 'u' && std::strncmp(text, kAroundBackward, sizeof kAroundBackward - 1) == 0))
    return;
  // With several ranks on a thread this is called once for each of their recorders.
  if (!open_.empty() && open_.back().owner == &call) return;
  const bool backward = call.scope() == at::RecordScope::BACKWARD_FUNCTION;
  const uint16_t line = current_line();
  const KnownName& name = known_name(text);
  ProfileEvent* event = begin(&call, backward ? EventKind::kBackward : EventKind::kOperator, name.number);
  if (event == nullptr) return;
  if (name.macs != MacRule::kNone && !backward) event->value = count_macs(name.macs, call.inputs());
  in_operator_ = true;
  event->line = line_ = line;
  if (phase_ == Phase::kScript) event->phase = phase_ = backward ? Phase::kBackward : Phase::kForward;
  place_memory();
  note_node(call, *event, backward);
  if (listener_ != nullptr && !backward) listener_->operator_begins(call);
}

void Recorder::end_operator(const at::RecordFunction& call) {
  const bool open = !open_.empty() && open_.back().owner == &call;
  if (open && listener_ != nullptr && call.scope() == at::RecordScope::FUNCTION) listener_->operator_ended(call);
  end(&call);
}

// Operators that are differentiated and the functions that do it have the same number.
void Recorder::note_node(const at::RecordFunction& call, ProfileEvent& event, bool backward) {
  const int64_t node = call.seqNr();
  if (node < 0) return;
  if (!backward) {
    if (first_node_ < 0) first_node_ = node;
    if (node < first_node_) return;
    const auto at = static_cast<size_t>(node - first_node_);
    if (at >= made_node_.size()) made_node_.resize(at + 1, ProfileEvent::kNoEvent);
    made_node_[at] = open_.back().event;
  } else if (first_node_ >= 0 && node >= first_node_ && node - first_node_ < std::ssize(made_node_)) {
    const uint32_t made = made_node_[node - first_node_];
    if (made == ProfileEvent::kNoEvent) return;
    event.value = made;
    event.module = module_ = record_.events[made].module;
    event.line = line_ = record_.events[made].line;
    place_memory();
  }
}

// Returns the line of what begins now.
uint16_t Recorder::current_line() {
  const uint16_t line = !in_operator_ && read_line_ ? read_line_(*this) : uint16_t{0};
  return line != 0 ? line : line_;
}

uint32_t Recorder::begin_call(const void* owner, const Call& call) {
  const uint16_t line = current_line();
  ProfileEvent* event = begin(owner, call.verb == CommStats::kExchange ? EventKind::kMessages : EventKind::kCollective,
                              known_name(CommStats::name(static_cast<CommStats::Kind>(call.verb))).number);
  if (event == nullptr) return ProfileEvent::kNoEvent;
  event->value = call.bytes;
  event->line = line_ = line;
  const uint32_t number = open_.back().event;
  const auto at = static_cast<uint32_t>(record_.calls.size());
  record_.calls.push_back(
      {number, static_cast<uint32_t>(call.verb), call.rank, call.size, call.group, CallMark::now().tag});
  for (const Part& part : call.sends) record_.messages.push_back({at, part.peer, part.bytes, 1});
  for (const Part& part : call.receives) record_.messages.push_back({at, part.peer, part.bytes, 0});
  if (listener_ != nullptr) listener_->verb_called(call, number);
  return number;
}

void Recorder::begin_wait(const void* owner, uint32_t call) {
  ProfileEvent* event = begin(owner, EventKind::kWait, known_name("wait").number);
  // A recorder that started since has other events.
  if (event == nullptr || call >= record_.events.size() || record_.events[call].kind != EventKind::kMessages) return;
  event->value = call;
  if (listener_ != nullptr) listener_->exchange_awaited(call);
}

uint32_t Recorder::name_number(const std::string& text) {
  const auto [found, added] = names_.try_emplace(text, static_cast<uint32_t>(record_.names.size()));
  if (added) record_.names.emplace_back(text);
  return found->second;
}

const Recorder::KnownName& Recorder::known_name(const char* text) {
  const auto address = reinterpret_cast<uintptr_t>(text);
  RecentName& recent = recent_names_[(address >> 4 ^ address >> 12) % recent_names_.size()];
  if (recent.address == text && std::strcmp(recent.known->text.c_str(), text) == 0) [[likely]]
    return *recent.known;
  KnownName& known = names_by_address_[text];
  if (known.text != text || known.text.empty()) known = {text, name_number(text), mac_rule(text)};
  recent = {text, &known};
  return known;
}

uint16_t Recorder::add_module(std::string name) {
  if (record_.modules.size() >= kMostNumbers) return module_;
  record_.modules.push_back({name.empty() ? "(unnamed)" : std::move(name), module_});
  modules_by_key_.emplace_back();
  modules_by_name_.emplace_back();
  return static_cast<uint16_t>(record_.modules.size() - 1);
}

uint16_t Recorder::module_number(const void* key, const std::function<std::string()>& name) {
  const uint16_t caller = module_;
  const auto known = modules_by_key_[caller].find(key);
  if (known != modules_by_key_[caller].end()) return known->second;
  const uint16_t number = module_number(name());
  modules_by_key_[caller].emplace(key, number);
  return number;
}

uint16_t Recorder::module_number(const std::string& name) {
  const uint16_t caller = module_;
  const auto known = modules_by_name_[caller].find(name);
  if (known != modules_by_name_[caller].end()) return known->second;
  const uint16_t number = add_module(name);
  modules_by_name_[caller].emplace(name, number);
  return number;
}

uint16_t Recorder::note_line(const std::string& line) {
  const auto known = lines_.find(line);
  if (known != lines_.end()) return known->second;
  if (record_.lines.size() >= kMostNumbers) return 0;
  const auto number = static_cast<uint16_t>(record_.lines.size());
  record_.lines.push_back(line);
  lines_.emplace(line, number);
  return number;
}

std::string Recorder::memory_by_module() const {
  constexpr size_t kMostPlaces = 8;
  const EventNames names(record_);
  std::string text;
  const std::vector<MemoryRecord::Held> all = memory_.held();
  for (size_t i = 0; i < all.size() && i < kMostPlaces; ++i) {
    const MemoryRecord::Place& place = all[i].place;
    text += "\n        " + names.of_place(place) + (place.before ? "" : std::string(" (") + name(place.phase) + ")") +
            " " + bytes_text(all[i].bytes);
  }
  return text;
}

void RecordRange::begin(EventKind kind, std::string_view name, Phase phase) {
  Recorder* recorder = Recorder::of_this_rank();
  if (recorder == nullptr) return;
  recorder->begin_range(this, kind, name, phase);
  recorded_ = true;
}

void RecordRange::end() {
  if (Recorder* recorder = Recorder::of_this_rank()) recorder->end(this);
}

void InModule::begin(const std::string& name) {
  Recorder* recorder = Recorder::of_this_rank();
  if (recorder == nullptr) return;
  recorder->begin_module(this, recorder->module_number(name));
  recorded_ = true;
}

void InModule::end() {
  if (Recorder* recorder = Recorder::of_this_rank()) recorder->end(this);
}

void watch_steps(const void* owner, std::function<void(int64_t)> seen) {
  auto& watches = profile_context->step_watches;
  std::erase_if(watches, [owner](const auto& watch) { return watch->owner == owner; });
  if (seen) watches.push_back(std::make_shared<StepWatch>(StepWatch{owner, std::move(seen)}));
}

void note_optimizer_step(const void* optimizer) {
  const auto watches = profile_context->step_watches;  // they may be removed meanwhile
  for (const auto& watch : watches) {
    if (watch->optimizer == nullptr) watch->optimizer = optimizer;
    if (optimizer == watch->optimizer) watch->seen(++watch->steps);
  }
}

}  // namespace moonhalo
