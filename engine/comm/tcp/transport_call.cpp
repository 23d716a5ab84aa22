// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/tcp/transport_call.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "moonhalo/engine/comm/interpreter_lock.h"

namespace moonhalo {
namespace {

// Ranks that found different calls wait this long for each other's descriptions.
constexpr std::chrono::seconds kReportWithin{5};
// A rank that waits for this long sends the others its call.
constexpr std::chrono::milliseconds kAnnounceAfter{100};
// A rank may end its session, and its process, while last messages of others are on their way. So a wait ends
// because a neighbour fails only after this time. Ranks that wait for a lost rank itself end at once, and announce it.
constexpr std::chrono::seconds kEndsForNeighbourAfter{2};

}  // namespace

/// Says which call a rank makes. All ranks run the same program, so numbers are those of the machine.
struct TransportCall::Head {
  uint64_t tag, bytes, number;
  int64_t elements;
  int32_t kind, op, dtype, root;
  char what[48];

  std::string text() const {
    const CollectiveCall call{
        .kind = kind, .number = number, .op = op, .dtype = dtype, .root = root, .elements = elements, .mark = {}};
    return call.text() + (what[0] == '\0' ? "" : std::string(", in ") + what);
  }
};

TransportCall::TransportCall(TransportGroupPtr group, const CollectiveCall& call, uint64_t tag,
                             std::chrono::milliseconds timeout)
    : group_(std::move(group)), call_(call), tag_(tag), timeout_(timeout) {
  // Lists of counts live no longer than their caller.
  call_.counts = call_.send_counts = call_.receive_counts = {};
}

TransportCall::~TransportCall() {
  for (Part& part : parts_) {
    const auto is_open = [](const void* request) { return request != nullptr; };
    if (!part.sends) {
      for (void*& request : part.requests) withdraw(group_->hub->transport(), request, part.head);
    } else if (std::any_of(part.requests.begin(), part.requests.end(), is_open)) {
      static_cast<void>(part.head.release());
    }
    if (part.head == nullptr) new std::vector<at::Tensor>(kept_);
  }
}

TransportCall::Part& TransportCall::add(bool sends, char* data, size_t bytes, int peer) {
  return parts_.emplace_back(
      Part{peer, std::unique_ptr<char[]>(new char[sizeof(Head) + kInlineBytes]), data, bytes, {}, sends});
}

/// Begins a message. Where that fails, this rank does not go on with the rounds in which others wait for it.
template <typename Begin>
void TransportCall::begin(Part& part, const Begin& make) {
  try {
    part.requests.push_back(make());
  } catch (const CommError& error) {
    announce_loss(error);
    note_failed();
    throw;
  }
}

void TransportCall::announce_loss(const CommError& error) {
  group_->hub->announce(*group_->world, group_->tag, {call_.number, /*lost=*/true, error.what()});
}

void TransportCall::note_failed() {
  const std::lock_guard lock(group_->world->mutex);
  group_->world->failed.try_emplace(group_->tag, call_.number);
}

void TransportCall::send(const void* data, size_t bytes, int peer) {
  Part& part = add(true, static_cast<char*>(const_cast<void*>(data)), bytes, peer);
  Head head{tag_, bytes, call_.number, call_.elements, call_.kind, call_.op, call_.dtype, call_.root, {}};
  if (call_.mark.what != nullptr) std::strncpy(head.what, call_.mark.what, sizeof(head.what) - 1);
  std::memcpy(part.head.get(), &head, sizeof(head));
  const bool inside = bytes <= kInlineBytes;
  if (inside && bytes > 0) std::memcpy(part.head.get() + sizeof(head), data, bytes);
  Transport& transport = group_->hub->transport();
  const int to = group_->members[peer];
  begin(part, [&] { return transport.send(part.head.get(), sizeof(head) + (inside ? bytes : 0), to, group_->tag); });
  if (inside) return;
  for (size_t at = 0; at < bytes; at += Transport::kPieceBytes) {
    const size_t piece = std::min(Transport::kPieceBytes, bytes - at);
    begin(part, [&] { return transport.send(part.data + at, piece, to, group_->tag); });
  }
}

void TransportCall::receive(void* data, size_t bytes, int peer) {
  Part& part = add(false, static_cast<char*>(data), bytes, peer);
  Transport& transport = group_->hub->transport();
  const int from = group_->members[peer];
  begin(part, [&] { return transport.receive(part.head.get(), sizeof(Head) + kInlineBytes, from, group_->tag); });
  if (bytes <= kInlineBytes) return;
  for (size_t at = 0; at < bytes; at += Transport::kPieceBytes) {
    const size_t piece = std::min(Transport::kPieceBytes, bytes - at);
    begin(part, [&] { return transport.receive(part.data + at, piece, from, group_->tag); });
  }
}

TransportCall::Head TransportCall::head_of(const Part& part) {
  Head head;
  std::memcpy(&head, part.head.get(), sizeof(head));
  return head;
}

/// The data of a head that fits.
void TransportCall::take(Part& part) {
  const Head theirs = head_of(part);
  if (theirs.tag != tag_ || theirs.bytes != part.bytes) refuse(part);
  if (part.bytes > 0 && part.bytes <= kInlineBytes) std::memcpy(part.data, part.head.get() + sizeof(Head), part.bytes);
}

/// Holds the messages in which ranks describe their calls, while these are under way. However that ends, receives are
/// withdrawn, and the memory of a send that has not ended is given up.
struct TransportCall::Descriptions {
  struct Text {
    char text[1000];
  };
  struct Coming {
    std::unique_ptr<Text> text;
    void* request;
  };

  Descriptions(Transport& transport_, const std::string& text) : transport(transport_) {
    std::strncpy(mine->text, text.c_str(), sizeof(Text) - 1);
  }
  ~Descriptions() {
    for (auto& [peer, one] : coming) withdraw(transport, one.request, one.text);
    if (!going.empty()) static_cast<void>(mine.release());
  }
  Descriptions(const Descriptions&) = delete;

  void send(int peer, int tag) { going.push_back(transport.send(mine.get(), sizeof(Text), peer, tag)); }
  void receive(int from, int peer, int tag) {
    if (coming.count(from) > 0) return;
    Coming& place = coming[from] = {std::make_unique<Text>(), nullptr};
    place.request = transport.receive(place.text.get(), sizeof(Text), peer, tag);
  }
  /// Moves what has come to `found`.
  void take(std::map<int, std::string>& found) {
    for (auto one = coming.begin(); one != coming.end();) {
      const bool come = transport.test(one->second.request);
      if (come) found[one->first] = one->second.text->text;
      one = come ? coming.erase(one) : std::next(one);
    }
  }

  Transport& transport;
  std::unique_ptr<Text> mine = std::make_unique<Text>();
  std::map<int, Coming> coming;  ///< by rank of the group
  std::vector<void*> going;
};

/// Sends `mine` to all peers of this call, and gives what they say in turn: those that have found calls to differ.
/// Ends early where a rank has sent to all what it found.
std::map<int, std::string> TransportCall::exchange_descriptions(const std::string& mine) {
  Descriptions under_way(group_->hub->transport(), mine);
  const int tag = group_->tag + TransportHub::kDescriptionTags;
  for (const Part& part : parts_) {
    const int peer = group_->members[part.peer];
    part.sends ? under_way.send(peer, tag) : under_way.receive(part.peer, peer, tag);
  }
  std::map<int, std::string> descriptions;
  const auto deadline = std::chrono::steady_clock::now() + kReportWithin;
  for (;;) {  // takes what has come before it ends
    under_way.take(descriptions);
    if (under_way.coming.empty() || std::chrono::steady_clock::now() >= deadline || announced()) break;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  const auto taken_by = std::chrono::steady_clock::now() + TransportHub::kTakenWithin;
  std::vector<void*>& going = under_way.going;
  while (!going.empty() && std::chrono::steady_clock::now() < taken_by) {
    if (group_->hub->transport().test(going.back())) going.pop_back();
  }
  return descriptions;
}

/// Ranks that have received the same headers come to the same result: the first of them, and the first that
/// differs.
void TransportCall::refuse(Part& found) {
  group_->broken() = std::string(call_.verb()) + ": ranks of this group make different calls";
  const auto deadline = std::chrono::steady_clock::now() + kReportWithin;
  std::map<int, std::pair<uint64_t, std::string>> calls{{group_->rank, {tag_, call_.describe()}}};
  for (Part& part : parts_) {
    while (!part.sends && !part.head_done && std::chrono::steady_clock::now() < deadline) {
      part.head_done = ended(part.requests[0]);
      if (part.head_done) part.requests[0] = nullptr;
    }
    if (!part.sends && part.head_done) calls[part.peer] = {head_of(part).tag, head_of(part).text()};
  }
  for (auto& [peer, text] : exchange_descriptions(calls[group_->rank].second)) calls[peer].second = text;
  end_if_announced();
  const auto first = calls.begin();
  const auto other =
      std::find_if(first, calls.end(), [&](const auto& one) { return one.second.first != first->second.first; });
  if (other != calls.end()) {
    group_->broken() =
        different_calls(call_.verb(), first->first, first->second.second, other->first, other->second.second);
  } else {
    group_->broken() = std::string(call_.verb()) + ": what rank " + std::to_string(found.peer) +
                       " of this group sends to rank " + std::to_string(group_->rank) +
                       " does not fit what that receives\n  have  " + std::to_string(head_of(found).bytes) +
                       " bytes sent, " + std::to_string(found.bytes) + " expected, in " + calls[group_->rank].second +
                       divergence_remedy();
  }
  group_->hub->announce(*group_->world, group_->tag, {call_.number, /*lost=*/false, group_->broken()});
  TORCH_CHECK_VALUE(false, group_->broken());
}

/// Tests a request that has not ended. One that has failed is gone, and fails again.
bool TransportCall::ended(void*& request) {
  if (request == nullptr) throw CommError(failure_);
  try {
    return group_->hub->transport().test(request);
  } catch (const CommError& error) {
    failure_ = error.what();
    throw;
  }
}

// The head first: where calls differ, the data behind it is none that fits.
bool TransportCall::done(Part& part) {
  if (!part.head_done) {
    if (!ended(part.requests[0])) return false;
    part.requests[0] = nullptr;
    part.head_done = true;
    if (!part.sends) take(part);
  }
  while (part.requests.size() > 1) {
    if (!ended(part.requests.back())) return false;
    part.requests.pop_back();
  }
  return true;
}

/// A rank that is suspended, as notes say that have come by now, and never makes this call; -1 if there is none.
int TransportCall::ended_rank() {
  group_->hub->poll();
  return group_->hub->ended_rank(*group_->world, group_->tag, group_->members, call_.number);
}

std::optional<TransportHub::Failure> TransportCall::announced() {
  group_->hub->poll();
  return group_->hub->announced(*group_->world, group_->tag, group_->members, call_.number);
}

void TransportCall::end_if_announced() {
  const std::optional<TransportHub::Failure> failure = announced();
  if (!failure) return;
  if (failure->lost) throw CommError(failure->text);
  group_->broken() = failure->text;
  TORCH_CHECK_VALUE(false, failure->text);
}

// Ranks in different verbs may wait for each other without a message between them. One that waits for long tells all;
// the others need not, unless they make another call, and the first of them does: so few do where all wait for one.
void TransportCall::compare_waiting(std::chrono::steady_clock::duration waited) {
  const auto others = group_->hub->waiting(*group_->world, group_->tag, group_->members, call_.number);
  for (const auto& [rank, call_tag, text] : others) {
    if (call_tag == tag_) {
      announces_ = false;
      continue;
    }
    const std::string mine = call_.describe();
    const bool first = group_->rank < rank;
    group_->broken() = first ? different_calls(call_.verb(), group_->rank, mine, rank, text)
                             : different_calls(call_.verb(), rank, text, group_->rank, mine);
    group_->hub->announce(*group_->world, group_->tag, {call_.number, /*lost=*/false, group_->broken()});
    TORCH_CHECK_VALUE(false, group_->broken());
  }
  const int turn = static_cast<int>(std::bit_width(static_cast<unsigned>(group_->rank)));
  if (!announces_ || waited < kAnnounceAfter * (1 + turn)) return;
  announces_ = false;
  group_->hub->announce(*group_->world, group_->tag, call_.number, tag_, call_.describe());
}

bool TransportCall::ready() {
  return std::all_of(parts_.begin(), parts_.end(), [this](Part& part) { return done(part); }) || ended_rank() >= 0 ||
         announced();
}

void TransportCall::wait_received() { end_parts(/*sends_too=*/false); }

void TransportCall::wait() {
  end_parts(/*sends_too=*/true);
  kept_.clear();
}

void TransportCall::end_parts(bool sends_too) {
  try {
    wait_for_parts(sends_too);
  } catch (...) {
    note_failed();
    throw;
  }
}

// Sends that need not end are tested all the same: a transport may go on with a message when it is asked about it.
void TransportCall::wait_for_parts(bool sends_too) {
  WaitingTime time;
  std::optional<InterpreterReleased> interpreter_released;
  std::vector<Part*> open;
  size_t bytes = 0;
  for (Part& part : parts_) {
    open.push_back(&part);
    bytes += part.sends && !sends_too ? 0 : part.bytes;
  }
  const PollingPause polling(bytes);
  const auto must_end = [sends_too](const Part* part) { return sends_too || !part->sends; };
  for (;;) {
    try {
      std::erase_if(open, [this](Part* part) { return done(*part); });
    } catch (const CommError& error) {  // of the transport
      announce_loss(error);
      throw;
    }
    if (std::none_of(open.begin(), open.end(), must_end)) break;
    if (!interpreter_released) interpreter_released.emplace();
    pause(time, polling);
  }
  std::erase_if(parts_, [](const Part& part) { return part.ended(); });
}

void TransportCall::pause(WaitingTime& time, const PollingPause& polling) {
  const auto waited = time.poll();
  if (time.left(timeout_) <= std::chrono::steady_clock::duration::zero()) throw_timeout();
  if (waited <= PollingPause::kLongest) return polling.pause(waited);
  end_if_announced();
  compare_waiting(waited);
  if (const int rank = ended_rank(); rank >= 0) {
    throw CommError("rank " + std::to_string(rank) + " ended without joining " + call_.verb() + " (call " +
                    std::to_string(call_.number) + " of this group)\n  have  rank " + std::to_string(group_->rank) +
                    " of this group: " + call_.describe() + divergence_remedy());
  }
  if (waited >= kEndsForNeighbourAfter) group_->hub->check_neighbours();
  std::this_thread::sleep_for(std::chrono::microseconds(20));
}

void TransportCall::throw_timeout() {
  std::ostringstream text;
  text << call_.verb() << " timed out after " << seconds_text(timeout_) << " on rank " << group_->rank
       << ": no message to or from rank";
  std::set<int> missing;
  for (const Part& part : parts_) {
    if (!part.ended()) missing.insert(part.peer);
  }
  for (const int peer : missing) text << (peer == *missing.begin() ? " " : ", ") << peer;
  text << "\n  have  ranks that make different calls, or a rank that was lost"
       << "\n  fix   look for ranks that take another branch; MOONHALO_TIMEOUT_S sets the time";
  throw CommError(text.str());
}

}  // namespace moonhalo
