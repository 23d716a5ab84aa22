// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/embed/trainer_link.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "moonhalo/engine/base/work_note.h"
#include "moonhalo/engine/comm/pollable.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/scripting/embed/outcome.h"

namespace moonhalo::scripting {

namespace {

// A reply begins with its status and, where the trainers failed, the text.
enum Status : uint8_t { kFine, kFailed, kFailedBecauseOfAnother };
constexpr int64_t kTextBytes = 2048;

int64_t bytes_of(const std::vector<at::Tensor>& weights) { return kTextBytes + memory_bytes(weights); }

/// This rank's part of a field as a block of the solver's; none where other ranks have the same.
std::vector<Block> block_of(const at::Tensor& field) {
  const SpecPtr& where = spec(field);
  for (int64_t m = 0; m < where->mesh()->ndim(); ++m) {
    if (!where->layout().uses(m) && where->mesh()->coordinate(m) != 0) return {};
  }
  const at::Tensor local = to_local(field);
  std::vector<int64_t> begin;
  for (int64_t d = 0; d < local.dim(); ++d) begin.push_back(where->block_range(d, where->mesh()->rank()).begin);
  return {Block{local.mutable_data_ptr(),
                local.scalar_type(),
                local.sizes().vec(),
                local.strides().vec(),
                {},
                {},
                begin,
                where->global_shape()}};
}

}  // namespace

struct TrainerLink::Header {
  enum Command : int64_t { kEnd, kSnapshot, kNewPlan };
  static constexpr int64_t kNumbers = 16;
  int64_t command = kEnd, count = 0;
  double numbers[kNumbers] = {};

  at::Tensor tensor() const {
    at::Tensor bytes = at::empty({static_cast<int64_t>(sizeof(Header))}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), this, sizeof(Header));
    return bytes;
  }
};

TrainerLink::TrainerLink(CommunicatorPtr all, int trainers)
    : all_(std::move(all)), solvers_(all_->size() - trainers), trainers_(trainers) {
  if (all_->rank() >= solvers_) part_rank_ = all_->rank() - solvers_;
  const ScopedStatsPause stats_pause;
  mesh_ = init_device_mesh(*all_, "cpu", {all_->size()});
}

TrainerLink::~TrainerLink() {
  attempt([this] {  // the session ends: there is no caller any more to which an error could be reported
    if (ended_.empty() && trains()) receive_header();
    if (ended_.empty() && !trains()) disconnect_from_trainers();
    for (const WorkPtr& work : sends_) work->wait();
  });
}

/// Unless they have failed meanwhile.
void TrainerLink::disconnect_from_trainers() {
  if (reply_ != nullptr) reply_->wait();
  if (reply_ == nullptr || arriving_.const_data_ptr<uint8_t>()[0] == kFine) send_header({});
}

void TrainerLink::check_open(const char* what) const {
  TORCH_CHECK_VALUE(ended_.empty(), what, ": the link to the trainers has ended before\n  have  ", ended_,
                    "\n  fix   go on without them");
}

/// Solvers give their fields, trainers how many there are. Collective over all.
void TrainerLink::plan(const std::vector<at::Tensor>& fields, size_t count) {
  const ScopedStatsPause stats_pause;
  ended_ = "its fields do not fit together";
  std::vector<BoxSet> sets;
  for (size_t i = 0; i < count; ++i) {
    sets.emplace_back(
        trains() ? std::vector<Block>{} : block_of(fields[i]), *all_, [this](int64_t) { return mesh_; }, trainers_);
  }
  sets_ = std::move(sets);
  readings_.clear();
  readings_.resize(count);
  ended_.clear();
}

/// From the first solver to all trainers.
void TrainerLink::send_header(const Header& header) {
  std::vector<Message> messages;
  for (int t = 0; t < trainers_ && all_->rank() == 0; ++t) messages.push_back({solvers_ + t, header.tensor()});
  sends_.push_back(all_->exchange_async(std::move(messages), {}));
}

void TrainerLink::request(Communicator& solvers, const std::vector<at::Tensor>& fields, std::span<const double> numbers,
                          const std::vector<at::Tensor>& weights) {
  check_open("trainers");
  TORCH_CHECK_VALUE(numbers.size() <= Header::kNumbers, "trainers: too many numbers go with a snapshot\n  have  ",
                    numbers.size(), "\n  fix   give step at most ", Header::kNumbers);
  const at::NoGradGuard plain;
  std::vector<std::pair<SpecPtr, at::ScalarType>> required;
  for (const at::Tensor& field : fields) {
    required.emplace_back(spec(field), field.scalar_type());
    const int64_t ranks = spec(field)->mesh()->size();
    TORCH_CHECK_VALUE(ranks == solvers.size(), "trainers: a field is on ", ranks, " of the ", solvers.size(),
                      " ranks that solve\n  have  ", spec(field)->to_string(),
                      "\n  fix   give fields that the solver has registered");
  }
  Header header{required == planned_ ? Header::kSnapshot : Header::kNewPlan, static_cast<int64_t>(numbers.size())};
  std::copy(numbers.begin(), numbers.end(), header.numbers);
  sends_.clear();
  send_header(header);
  if (header.command == Header::kNewPlan) {
    plan(fields, fields.size());
    planned_ = std::move(required);
  }
  for (size_t i = 0; i < fields.size(); ++i) {
    std::vector<at::Tensor> mine;
    if (!block_of(fields[i]).empty()) mine.push_back(to_local(fields[i]));
    readings_[i] = sets_[i].start_read(mine, std::move(readings_[i]), /*later=*/true);
  }
  arriving_ = at::empty({bytes_of(weights)}, at::kByte);
  reply_ = all_->exchange_async({}, {{solvers_ + all_->rank() % trainers_, arriving_}});
}

bool TrainerLink::take(Communicator& solvers, const std::vector<at::Tensor>& weights) {
  if (reply_ == nullptr) return false;
  enum Come : int64_t { kNot, kFailure, kWeights };
  const auto* next = arriving_.const_data_ptr<uint8_t>();
  at::Tensor come = at::full({1}, int64_t{kNot}, at::kLong);
  if (is_ready(*reply_)) {
    reply_->wait();
    come.fill_(int64_t{*next == kFine ? kWeights : kFailure});
  }
  {
    const ScopedStatsPause stats_pause;
    solvers.all_reduce(come, ReduceOp::kMin);
  }
  if (come.item<int64_t>() == kNot) return false;
  reply_.reset();
  for (const WorkPtr& work : sends_) work->wait();
  for (const BoxSet::Reading& reading : readings_) reading.work->wait();
  if (come.item<int64_t>() == kFailure) throw_failure(solvers);
  const at::NoGradGuard plain;
  int64_t begin = kTextBytes;
  for (const at::Tensor& weight : weights) {
    const auto bytes = static_cast<int64_t>(weight.nbytes());
    const at::Tensor value = at::empty(weight.sizes(), weight.scalar_type());
    if (bytes > 0) std::memcpy(value.mutable_data_ptr(), next + begin, bytes);
    at::Tensor(weight).copy_(value);
    begin += bytes;
  }
  return true;
}

void TrainerLink::throw_failure(Communicator& solvers) {
  const auto* reply = arriving_.const_data_ptr<uint8_t>();
  const std::vector<std::string> all = solvers.all_gather_strings(
      static_cast<char>('0' + reply[0]) + std::string(reinterpret_cast<const char*>(reply + 1)));
  const auto first = std::find_if(all.begin(), all.end(), [](const auto& one) { return one[0] == '0' + kFailed; });
  const auto other = std::find_if(all.begin(), all.end(), [](const auto& one) { return one[0] != '0' + kFine; });
  const std::string text = (first == all.end() ? *other : *first).substr(1);
  ended_ = "the trainers have failed: " + text.substr(0, text.find('\n'));
  TORCH_CHECK(false, "the trainers have failed\n  have  ", text,
              "\n  fix   correct the script; the solver can go on without them");
}

bool TrainerLink::finish(Communicator& solvers, const std::vector<at::Tensor>& weights) {
  check_open("trainers");
  if (reply_ != nullptr) reply_->wait();
  const bool taken = take(solvers, weights);
  send_header({});
  for (const WorkPtr& work : sends_) work->wait();
  ended_ = "the script has finished it";
  return taken;
}

TrainerLink::Header TrainerLink::receive_header() {
  const at::Tensor bytes = Header{}.tensor();
  all_->exchange({}, {{0, bytes}});
  Header header;
  std::memcpy(&header, bytes.const_data_ptr(), sizeof(header));
  return header;
}

std::optional<TrainerLink::Request> TrainerLink::next(size_t fields) {
  check_open("trainers");
  const at::NoGradGuard plain;
  const Header header = receive_header();
  if (header.command == Header::kEnd) {
    ended_ = "the solvers have finished it";
    return std::nullopt;
  }
  if (header.command == Header::kNewPlan) plan({}, fields);
  Request request;
  request.numbers.assign(header.numbers, header.numbers + header.count);
  for (size_t i = 0; i < sets_.size(); ++i) readings_[i] = sets_[i].start_read({}, std::move(readings_[i]));
  for (size_t i = 0; i < sets_.size(); ++i) {
    sets_[i].finish_read(readings_[i]);
    request.slabs.push_back(to_local(sets_[i].field()).clone());
    std::vector<int64_t> rows;
    for (int t = 0; t < trainers_; ++t) rows.push_back(spec(sets_[i].field())->block_range(0, solvers_ + t).size());
    request.sizes.push_back(rows);
  }
  return request;
}

void TrainerLink::send_reply(const at::Tensor& bytes) {
  std::vector<Message> messages;
  for (int solver = part_rank_; solver < solvers_; solver += trainers_) messages.push_back({solver, bytes});
  sends_.push_back(all_->exchange_async(std::move(messages), {}));
}

void TrainerLink::reply(const std::vector<at::Tensor>& weights) {
  at::Tensor bytes = at::empty({bytes_of(weights)}, at::kByte);
  auto* next = bytes.mutable_data_ptr<uint8_t>();
  std::fill_n(next, kTextBytes, kFine);
  next += kTextBytes;
  for (const at::Tensor& weight : weights) {
    const at::Tensor value = weight.detach().cpu().contiguous();
    if (value.numel() > 0) std::memcpy(next, value.const_data_ptr(), value.nbytes());
    next += value.nbytes();
  }
  send_reply(bytes);
  for (const WorkPtr& work : sends_) work->wait();
  sends_.clear();
}

void TrainerLink::fail(const std::vector<at::Tensor>& weights, const std::string& text, bool secondary) {
  const at::Tensor bytes = at::zeros({bytes_of(weights)}, at::kByte);
  auto* next = bytes.mutable_data_ptr<uint8_t>();
  next[0] = secondary ? kFailedBecauseOfAnother : kFailed;
  std::memcpy(next + 1, text.data(), std::min<size_t>(text.size(), kTextBytes - 2));
  ended_ = "it failed: " + text.substr(0, text.find('\n'));
  send_reply(bytes);
}

}  // namespace moonhalo::scripting
