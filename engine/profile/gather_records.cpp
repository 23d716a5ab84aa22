// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/gather_records.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>

#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/engine/profile/profile_clock.h"

namespace moonhalo {
namespace {

constexpr int kRoundTrips = 16;

// Processes of one system have one monotonic clock. "" where the system has no such file.
std::string system_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

at::Tensor one_number(int64_t value) {
  const at::Tensor number = at::empty({1}, at::kLong);
  *number.mutable_data_ptr<int64_t>() = value;
  return number;
}

at::Tensor bytes_of_text(const std::string& text) {
  const at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

std::string text_of(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

// All ranks ask rank 0 for its clock at the same time.
int64_t offset_by_messages(Communicator& world, bool one_system) {
  int64_t shortest = std::numeric_limits<int64_t>::max(), offset = 0;
  bool same_clock = one_system;
  for (int trip = 0; trip < kRoundTrips; ++trip) {
    const int64_t asked = profile_clock();
    std::vector<Message> out, in;
    if (world.rank() == 0) {
      for (int r = 1; r < world.size(); ++r) in.push_back({r, one_number(0)});
    } else {
      out.push_back({0, one_number(asked)});
    }
    world.exchange(out, in);
    out.clear();
    in.clear();
    const at::Tensor answer = one_number(profile_clock());
    if (world.rank() == 0) {
      for (int r = 1; r < world.size(); ++r) out.push_back({r, answer});
    } else {
      in.push_back({0, answer});
    }
    world.exchange(out, in);
    const int64_t answered = profile_clock(), theirs = *answer.const_data_ptr<int64_t>();
    same_clock = same_clock && asked <= theirs && theirs <= answered;
    if (answered - asked >= shortest) continue;
    shortest = answered - asked;
    offset = theirs - (asked + answered) / 2;
  }
  return world.rank() == 0 || same_clock ? 0 : offset;
}

}  // namespace

int64_t clock_offset(Communicator& world) {
  const std::vector<std::string> systems = world.all_gather_strings(system_id());
  const auto is_first = [&](const std::string& id) { return !id.empty() && id == systems[0]; };
  if (std::all_of(systems.begin(), systems.end(), is_first)) return 0;
  return offset_by_messages(world, is_first(systems[world.rank()]));
}

std::vector<RankRecord> gather_records(Communicator& world, RankRecord mine) {
  std::vector<RankRecord> all;
  if (world.is_fake()) {
    all.push_back(std::move(mine));
    return all;
  }
  const ScopedStatsPause not_counted;
  const auto describe = [] { return std::string("the profiler, which gathers what ranks have recorded"); };
  const CallScope scope(fingerprint_of("moonhalo.gather_records"), "profile", describe);
  mine.clock_offset = clock_offset(world);
  at::Tensor bytes;
  fail_together(world, [&] { bytes = bytes_of_text(mine.to_bytes()); });
  at::Tensor sizes = at::empty({world.size()}, at::kLong);
  world.all_gather(one_number(bytes.numel()), std::vector<int64_t>(world.size(), 1), sizes);
  std::vector<Message> out, in;
  fail_together(world, [&] {  // rank 0 may have no memory for all of them
    if (world.rank() > 0) return out.push_back({0, bytes});
    for (int r = 1; r < world.size(); ++r)
      in.push_back({r, at::empty({sizes.const_data_ptr<int64_t>()[r]}, at::kByte)});
  });
  world.exchange(out, in);
  fail_together(world, [&] {
    if (world.rank() > 0) return;
    all.push_back(std::move(mine));
    for (const Message& message : in) all.push_back(RankRecord::from_bytes(text_of(message.data)));
  });
  return all;
}

std::string broadcast_text(Communicator& world, const std::string& text) {
  if (world.is_fake()) return text;
  const ScopedStatsPause not_counted;
  const auto describe = [] { return std::string("the profiler, which hands out its summary"); };
  const CallScope scope(fingerprint_of("moonhalo.profile_text"), "profile", describe);
  at::Tensor size = one_number(static_cast<int64_t>(text.size()));
  world.broadcast(size, 0);
  at::Tensor bytes = world.rank() == 0 ? bytes_of_text(text) : at::empty({*size.const_data_ptr<int64_t>()}, at::kByte);
  world.broadcast(bytes, 0);
  return text_of(bytes);
}

}  // namespace moonhalo
