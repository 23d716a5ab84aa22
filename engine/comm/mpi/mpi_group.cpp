// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/mpi/mpi_group.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/diagnostics/calling_threads.h"
#include "moonhalo/engine/comm/diagnostics/collective_fingerprint.h"
#include "moonhalo/engine/comm/mpi/mpi_requests.h"

namespace moonhalo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kDescriptionTag = 3, kAnswerTag = 4;
constexpr uint64_t kDeviceCalls = 0xd;
// Ranks that found different calls wait this long for each other's descriptions.
constexpr std::chrono::seconds kAnswerWithin{5};

uint64_t message_tag(int from, int to, uint64_t index, uint64_t bytes, at::ScalarType dtype) {
  uint64_t tag = combine_fingerprint(static_cast<uint64_t>(from) + 1, static_cast<uint64_t>(to));
  tag = combine_fingerprint(combine_fingerprint(tag, index), bytes);
  return combine_fingerprint(tag, static_cast<uint64_t>(dtype));
}

uint64_t total(const std::vector<uint64_t>& words) { return std::accumulate(words.begin(), words.end(), uint64_t{0}); }

// A rank sends this about its call: its tag, what it sends to and receives from each rank, and the text.
std::string pack(uint64_t tag, const std::vector<uint64_t>& sent, const std::vector<uint64_t>& received,
                 const std::string& text) {
  std::string packed(reinterpret_cast<const char*>(&tag), sizeof(tag));
  for (const auto* words : {&sent, &received})
    packed.append(reinterpret_cast<const char*>(words->data()), words->size() * sizeof(tag));
  return packed + text;
}

uint64_t word_of(const std::string& packed, size_t index) {
  uint64_t word = 0;
  std::memcpy(&word, packed.data() + index * sizeof(word), sizeof(word));
  return word;
}

// A message with this tag that comes before the deadline; "" and source -1 if none does.
std::pair<int, std::string> receive_text(MPI_Comm comm, int tag, Clock::time_point deadline) {
  for (;;) {
    int come = 0;
    MPI_Message message;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, tag, comm, &come, &message, &status), "communicator", "MPI_Improbe");
    if (come != 0) {
      int bytes = 0;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      std::string text(bytes, '\0');
      MPI_Mrecv(text.data(), bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE);
      return {status.MPI_SOURCE, std::move(text)};
    }
    if (Clock::now() > deadline) return {-1, ""};
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

// A rank that has given up does not take it, so the text stays where MPI may still read it.
void send_text(MPI_Comm comm, int peer, int tag, const std::string& text) {
  const auto* kept = new std::string(text);
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(kept->data(), static_cast<int>(kept->size()), MPI_BYTE, peer, tag, comm, &request),
            "communicator", "MPI_Isend");
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(1);
  for (int done = 0; done == 0 && Clock::now() < deadline;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done != 0) delete kept;
  }
}

}  // namespace

OwnedComm::OwnedComm(MPI_Comm comm) : handle(comm) { MPI_Comm_set_errhandler(handle, MPI_ERRORS_RETURN); }

OwnedComm::~OwnedComm() {
  const UsesMpi mpi;
  if (mpi.may()) MPI_Comm_free(&handle);
}

void MpiTraffic::send(int from, int to, uint64_t bytes, at::ScalarType dtype) {
  sent_[to] += message_tag(from, to, next_sent_[to]++, bytes, dtype);
}

void MpiTraffic::receive(int from, int to, uint64_t bytes, at::ScalarType dtype) {
  received_[from] += message_tag(from, to, next_received_[from]++, bytes, dtype);
}

MpiGroup::MpiGroup(CommHandle comm, std::shared_ptr<MpiWorld> world, uint64_t id)
    : comm_(std::move(comm)),
      world_(std::move(world)),
      id_(id),
      device_id_(combine_fingerprint(id, kDeviceCalls)),
      calls_(world_->exit_notifier->calls(id)) {
  MPI_Comm_rank(handle(), &rank_);
  MPI_Comm_size(handle(), &size_);
  world_->group_ids.push_back(id_);
}

void MpiGroup::note_device_call(uint64_t number) {
  if (number == 0) world_->group_ids.push_back(device_id_);
  world_->exit_notifier->set_calls(device_id_, number);
}

// MPI may still write to the words of a check that never ended. Messages that were not taken would be taken for those
// of the next group that gets the same number from MPI, so what is not at rest is given up.
MpiGroup::~MpiGroup() {
  if (broken() || !checks_.empty()) new CommHandle(comm_);
  for (auto& check : checks_) static_cast<void>(check.release());
}

void MpiGroup::reduce(void* in, void* inout, int* count, MPI_Datatype*) {
  const auto* from = static_cast<const Words*>(in);
  auto* to = static_cast<Words*>(inout);
  for (int i = 0; i < *count; ++i) {
    to[i].low = std::min(to[i].low, from[i].low);
    to[i].high = std::max(to[i].high, from[i].high);
    to[i].balance += from[i].balance;
  }
}

MpiGroup::Check::Check(const CollectiveCall& given, const MpiTraffic& traffic_)
    : call(given),
      counts(given.counts.vec()),
      send_counts(given.send_counts.vec()),
      receive_counts(given.receive_counts.vec()),
      traffic(traffic_),
      mine{fingerprint_of_call(given), 0, total(traffic_.sent_) - total(traffic_.received_)} {
  mine.high = mine.low;
  call.counts = counts;
  call.send_counts = send_counts;
  call.receive_counts = receive_counts;
}

void MpiGroup::begin(CollectiveCall call, const MpiTraffic& traffic, bool may_differ) {
  count_calling_thread();
  TORCH_CHECK_VALUE(broken_.empty(), call.verb(), ": the ranks of this group have diverged before\n  have  ", broken_);
  call.number = ++calls_;
  call.mark = CallMark::now();
  message_tag_ = kMessageTag;
  if (!world_->check_calls) return;
  static const MPI_Datatype words = [] {
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Type_contiguous(3, MPI_UINT64_T, &type);
    MPI_Type_commit(&type);
    return type;
  }();
  static const MPI_Op op = [] {
    MPI_Op made = MPI_OP_NULL;
    MPI_Op_create(&MpiGroup::reduce, /*commute=*/1, &made);
    return made;
  }();
  Check& check = *checks_.emplace_back(std::make_unique<Check>(call, traffic));
  check.may_differ = may_differ;
  message_tag_ = kFirstMessageTag + static_cast<int>(check.mine.low % kMessageTags);
  check_mpi(MPI_Iallreduce(&check.mine, &check.all, 1, words, op, handle(), &check.request), call.verb(),
            "MPI_Iallreduce");
}

bool MpiGroup::settled(uint64_t number) {
  TORCH_CHECK_VALUE(broken_.empty(), broken_);
  while (!checks_.empty()) {
    Check& check = *checks_.front();
    if (check.call.number > number) return true;
    int done = 0;
    check_mpi(MPI_Test(&check.request, &done, MPI_STATUS_IGNORE), check.call.verb(), "MPI_Iallreduce");
    if (done == 0) return false;
    const bool differ = check.all.low != check.all.high || check.all.balance != 0;
    if (check.may_differ) {
      found_different_ = differ;
    } else if (differ) {
      refuse(check);
    }
    checks_.pop_front();
  }
  return true;
}

void MpiGroup::check_left(uint64_t number, const char* verb) {
  world_->exit_notifier->poll();
  const int rank = world_->exit_notifier->exited_rank(id_, number, world_->absence);
  if (rank < 0) return;
  const CollectiveCall* mine = call(number);
  const int status = world_->exit_notifier->status(rank);
  const std::string with_status = status == 0 ? "" : ", with exit status " + std::to_string(status);
  const std::string have =
      mine == nullptr ? "" : "\n  have  rank " + std::to_string(rank_) + " of this group: " + mine->describe();
  throw CommError("rank " + std::to_string(rank) + " ended without joining " + verb + " (call " +
                  std::to_string(number) + " of this group)" + with_status + have + divergence_remedy());
}

const CollectiveCall* MpiGroup::call(uint64_t number) const {
  for (const auto& check : checks_) {
    if (check->call.number == number) return &check->call;
  }
  return nullptr;
}

void MpiGroup::check_deadlock(uint64_t number, std::chrono::steady_clock::duration waited) {
  const CollectiveCall* mine = call(number);
  if (mine == nullptr) return;
  const std::string report =
      world_->exit_notifier->deadlock_detector().poll(waited, [mine] { return mine->describe(); });
  if (report.empty()) return;
  broken_ = std::string(mine->verb()) + ": all ranks wait for each other, in different groups or calls\n  have  " +
            report + divergence_remedy();
  TORCH_CHECK_VALUE(false, broken_);
}

void MpiGroup::refuse(const Check& check) {
  const CollectiveCall& call = check.call;
  const std::string text = call.describe();
  const auto padded = [&](std::vector<uint64_t> words) {
    words.resize(size_, 0);
    return words;
  };
  const std::string mine = pack(check.mine.low, padded(check.traffic.sent_), padded(check.traffic.received_), text);
  broken_ = rank_ == 0 ? report(check, mine) : ask_for_report(check, mine);
  if (broken_.empty()) {
    broken_ = std::string(call.verb()) + ": ranks of this group make different calls\n  have  rank " +
              std::to_string(rank_) + ": " + text + "; others that did not say theirs" + divergence_remedy();
  }
  TORCH_CHECK_VALUE(false, broken_);
}

std::string MpiGroup::ask_for_report(const Check&, const std::string& mine) {
  send_text(handle(), 0, kDescriptionTag, mine);
  return receive_text(handle(), kAnswerTag, Clock::now() + kAnswerWithin + std::chrono::seconds(1)).second;
}

// On rank 0 of the group, which receives all.
std::string MpiGroup::report(const Check& check, const std::string& mine) {
  std::vector<std::string> descriptions(size_);
  descriptions[0] = mine;
  const Clock::time_point deadline = Clock::now() + kAnswerWithin;
  for (int missing = size_ - 1; missing > 0; --missing) {
    auto [source, text] = receive_text(handle(), kDescriptionTag, deadline);
    if (source < 0) break;
    descriptions[source] = std::move(text);
  }
  const std::string text = judge(check, descriptions);
  for (int rank = 1; rank < size_; ++rank) {
    if (!descriptions[rank].empty()) send_text(handle(), rank, kAnswerTag, text);
  }
  return text;
}

// Two ranks that differ, by their calls or by what goes between them.
std::string MpiGroup::judge(const Check& check, const std::vector<std::string>& descriptions) const {
  const auto text_of = [&](int rank) { return descriptions[rank].substr((1 + 2 * size_) * sizeof(uint64_t)); };
  for (int rank = 1; rank < size_; ++rank) {
    if (!descriptions[rank].empty() && word_of(descriptions[rank], 0) != word_of(descriptions[0], 0))
      return different_calls(check.call.verb(), 0, text_of(0), rank, text_of(rank));
  }
  for (int from = 0; from < size_; ++from) {
    for (int to = 0; to < size_; ++to) {
      if (descriptions[from].empty() || descriptions[to].empty()) continue;
      const uint64_t sent = word_of(descriptions[from], 1 + to), received = word_of(descriptions[to], 1 + size_ + from);
      if (sent == received) continue;
      return std::string(check.call.verb()) + ": what rank " + std::to_string(from) + " of this group sends to rank " +
             std::to_string(to) + " does not fit what that receives\n  have  rank " + std::to_string(from) + ": " +
             text_of(from) + "\n        rank " + std::to_string(to) + ": " + text_of(to) + divergence_remedy();
    }
  }
  return "";
}

}  // namespace moonhalo
