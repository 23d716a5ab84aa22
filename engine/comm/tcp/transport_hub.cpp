// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/tcp/transport_hub.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

namespace moonhalo {

TransportHub::TransportHub(TransportPtr transport) : transport_(std::move(transport)) {
  const int rank = transport_->rank(), size = transport_->size();
  for (const int other : {(rank + 1) / 2 - 1, 2 * rank + 1, 2 * rank + 2}) {
    if (other < 0 || other >= size) continue;
    neighbours_.push_back({other, std::make_unique<Note>(), nullptr});
  }
  try {
    for (Neighbour& neighbour : neighbours_) listen_to(neighbour);
  } catch (const CommError&) {
    withdraw_all();
    throw;
  }
}

void TransportHub::listen_to(Neighbour& neighbour) {
  neighbour.request = transport_->receive(neighbour.note.get(), sizeof(Note), neighbour.rank, Transport::kNoteTag);
}

void TransportHub::withdraw_all() {
  for (Neighbour& neighbour : neighbours_) withdraw(*transport_, neighbour.request, neighbour.note);
}

// Notes that no rank takes any more stay where the transport may still read them.
TransportHub::~TransportHub() {
  std::vector<uint64_t> words;
  for (const auto& [tag, calls] : device_calls_) words.insert(words.end(), {static_cast<uint64_t>(tag), calls});
  transport_->give_last_words(std::move(words));
  withdraw_all();
  for (const Sending& one : sending_) new std::shared_ptr<const Note>(one.note);
}

void TransportHub::take_tag(int tag) {
  TORCH_CHECK_NOT_IMPLEMENTED(tag < kDescriptionTags, "split: no tags are left for another group of ranks\n  have  ",
                              kDescriptionTags - 1, " groups since the session began",
                              "\n  fix   make meshes and groups once, and use them again");
  next_tag_ = tag + 1;
}

void TransportHub::suspend(TransportWorld& world) {
  std::unique_lock lock(world.mutex);
  auto next = world.calls.begin();
  do {
    Note note{world.id, world.absence, static_cast<uint64_t>(transport_->rank()), 0, {}};
    for (; next != world.calls.end() && note.groups < kGroups; ++next) {
      const auto failed = world.failed.find(next->first);
      const uint64_t sound = failed == world.failed.end() ? next->second : failed->second - 1;
      note.calls[note.groups++] = {static_cast<uint64_t>(next->first), sound};
    }
    start_own(note);
  } while (next != world.calls.end());
  lock.unlock();
  finish_sends();
}

TransportHub::Note TransportHub::note_of(const TransportWorld& world, int tag, uint64_t number,
                                         const std::string& text) const {
  Note note{world.id, world.absence, static_cast<uint64_t>(transport_->rank()), 0, {}};
  note.tag = static_cast<uint64_t>(tag);
  note.call = number;
  std::strncpy(note.text.data(), text.c_str(), note.text.size() - 1);
  return note;
}

void TransportHub::announce(const TransportWorld& world, int tag, const Failure& failure) {
  Note note = note_of(world, tag, failure.call, failure.text);
  note.about = failure.lost ? Note::kLost : Note::kMismatch;
  start_own(note);
  finish_sends();
}

void TransportHub::announce(const TransportWorld& world, int tag, uint64_t number, uint64_t call_tag,
                            const std::string& text) {
  Note note = note_of(world, tag, number, text);
  note.about = Note::kWaits;
  note.call_tag = call_tag;
  start_own(note);
}

std::vector<TransportHub::Waiting> TransportHub::waiting(const TransportWorld& world, int tag,
                                                         const std::vector<int>& members, uint64_t number) {
  const std::lock_guard lock(mutex_);
  std::vector<Waiting> result;
  const auto found = waiting_.find({world.id, static_cast<uint64_t>(tag)});
  if (found == waiting_.end()) return result;
  for (const Note& note : found->second) {
    const auto member = std::find(members.begin(), members.end(), static_cast<int>(note.rank));
    if (note.call != number || note.absence != world.absence || member == members.end()) continue;
    result.push_back({static_cast<int>(member - members.begin()), note.call_tag, note.text.data()});
  }
  return result;
}

// Ranks that make different calls have diverged for good; those that were lost may have come back.
std::optional<TransportHub::Failure> TransportHub::announced(const TransportWorld& world, int tag,
                                                             const std::vector<int>& members, uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = announced_.find({world.id, static_cast<uint64_t>(tag)});
  if (found == announced_.end()) return std::nullopt;
  for (const auto& [rank, absence, failure] : found->second) {
    if (failure.call > number || (failure.lost && absence != world.absence)) continue;
    if (std::find(members.begin(), members.end(), rank) != members.end()) return failure;
  }
  return std::nullopt;
}

void TransportHub::take(const Note& note) {
  if (note.call > 0 && note.about == Note::kWaits) {
    auto& kept = waiting_[{note.world, note.tag}];
    kept.push_back(note);
    if (kept.size() > kKept) kept.pop_front();
    return;
  }
  if (note.call > 0) {
    announced_[{note.world, note.tag}].push_back(
        {static_cast<int>(note.rank), note.absence, {note.call, note.about == Note::kLost, note.text.data()}});
    return;
  }
  auto& calls = suspended_[{note.world, note.absence}][note.rank];
  for (size_t i = 0; i < note.groups; ++i) calls[note.calls[i][0]] = note.calls[i][1];
}

void TransportHub::pass_on(const Note& note, int from) {
  const auto kept = std::make_shared<const Note>(note);
  FirstFailure failure;
  for (const Neighbour& neighbour : neighbours_) {
    if (neighbour.rank == from) continue;
    failure.run([&] {
      sending_.push_back(
          {kept, neighbour.rank, transport_->send(kept.get(), sizeof(Note), neighbour.rank, Transport::kNoteTag)});
    });
  }
  failure.rethrow();
}

/// Begins to send a note of this rank. Waits find a neighbour that was lost; here the note goes to the others.
void TransportHub::start_own(const Note& note) {
  const std::lock_guard lock(mutex_);
  FirstFailure().run([&] { pass_on(note, -1); });
}

void TransportHub::finish_sends() {
  const auto deadline = std::chrono::steady_clock::now() + kTakenWithin;
  for (;;) {
    poll();
    {
      const std::lock_guard lock(mutex_);
      if (sending_.empty()) return;
    }
    if (std::chrono::steady_clock::now() >= deadline) return;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void TransportHub::take_from(Neighbour& neighbour) {
  if (neighbour.request == nullptr) listen_to(neighbour);  // an exception has come between
  while (transport_->test(neighbour.request)) {
    neighbour.request = nullptr;
    take(*neighbour.note);
    pass_on(*neighbour.note, neighbour.rank);
    listen_to(neighbour);
  }
}

/// A note that cannot be sent stays where the transport may still read it.
void TransportHub::test_sends(FirstFailure& failure) {
  const std::vector<Transport::Gone> gone = sending_.empty() ? std::vector<Transport::Gone>() : transport_->gone();
  for (auto one = sending_.begin(); one != sending_.end();) {
    bool under_way = true, failed = true;
    failure.run([&] {
      under_way = !transport_->test(one->request);
      failed = under_way && std::any_of(gone.begin(), gone.end(), [&](const auto& g) { return g.rank == one->rank; });
    });
    if (failed && one->request != nullptr) new std::shared_ptr<const Note>(one->note);
    one = under_way && !failed ? std::next(one) : sending_.erase(one);
  }
}

void TransportHub::poll() {
  const std::lock_guard lock(mutex_);
  failure_ = {};
  for (Neighbour& neighbour : neighbours_) failure_.run([&] { take_from(neighbour); });
  test_sends(failure_);
}

void TransportHub::check_neighbours() {
  const std::lock_guard lock(mutex_);
  failure_.rethrow();
}

void TransportHub::note_device_call(int tag, uint64_t number) {
  const std::lock_guard lock(mutex_);
  device_calls_[tag] = number;
}

int TransportHub::missing(const TransportWorld& world, int tag, const std::vector<int>& members, uint64_t number) {
  poll();
  check_neighbours();
  {
    const std::lock_guard lock(mutex_);
    const auto suspended_rank = suspended_.find({world.id, world.absence});
    if (suspended_rank != suspended_.end() && !suspended_rank->second.empty())
      return static_cast<int>(suspended_rank->second.begin()->first);
  }
  for (const auto& [rank, words] : transport_->gone()) {
    if (!words) return rank;
    if (std::find(members.begin(), members.end(), rank) == members.end()) continue;
    for (size_t i = 0; i + 1 < words->size(); i += 2) {
      if ((*words)[i] == static_cast<uint64_t>(tag) && (*words)[i + 1] < number) return rank;
    }
  }
  return -1;
}

int TransportHub::ended_rank(const TransportWorld& world, int tag, const std::vector<int>& members, uint64_t number) {
  const auto is_member = [&](int rank) { return std::find(members.begin(), members.end(), rank) != members.end(); };
  for (const auto& [rank, words] : transport_->gone()) {
    if (!words && is_member(rank)) return rank;
  }
  const std::lock_guard lock(mutex_);
  const auto suspended_rank = suspended_.find({world.id, world.absence});
  if (suspended_rank == suspended_.end()) return -1;
  for (const auto& [rank, calls] : suspended_rank->second) {
    if (!is_member(static_cast<int>(rank))) continue;
    const auto found = calls.find(static_cast<uint64_t>(tag));
    if (found != calls.end() && found->second < number) return static_cast<int>(rank);
  }
  return -1;
}

}  // namespace moonhalo
