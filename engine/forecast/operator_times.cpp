// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/operator_times.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <unordered_set>
#include <utility>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/forecast/least_time.h"
#include "moonhalo/engine/forecast/repeated_calls.h"
#include "moonhalo/engine/forecast/replace_file.h"
#include "moonhalo/engine/forecast/step_replay.h"

namespace moonhalo {
namespace {

using Json = nlohmann::ordered_json;

// Short calls are timed together; long enough for the clock and the barrier before them.
constexpr double kTogether = 300e-6;
constexpr int kMostTogether = 64;

// "Intel(R) Xeon(R) ... 2 cores, LibTorch 2.11.0, method 3". Another method of measuring finds other times.
std::string this_host(int64_t cores) {
  return processor_model() + ", " + std::to_string(cores) + " cores, LibTorch " TORCH_VERSION ", method 3";
}

std::string text_of(HostShare share) { return std::to_string(share.copies) + "x" + std::to_string(share.threads); }

HostShare share_of(const std::string& text, const std::string& path) {
  int64_t copies = 0, threads = 0;
  char end = 0;
  const bool right = std::sscanf(text.c_str(), "%ldx%ld%c", &copies, &threads, &end) == 2 && copies > 0 && threads > 0;
  TORCH_CHECK_VALUE(right, "operators file '", path, "': the key '", text, "' must be COPIESxTHREADS, such as 2x1",
                    "\n  have  ", text, "\n  fix   remove the file: it is measured again");
  return {copies, threads};
}

// The times of one share: an operator takes no negative time, and none of these takes an hour.
std::map<std::string, double> times_of(const Json& times, const std::string& share, const std::string& path) {
  for (const auto& [key, seconds] : times.items()) {
    const bool right = seconds.is_number() && seconds.get<double>() >= 0 && seconds.get<double>() <= 3600;
    TORCH_CHECK_VALUE(right, "operators file '", path, "': '", key, "' of ", share,
                      ": expected seconds, a number from 0 to 3600\n  have  ", seconds.dump(),
                      "\n  fix   remove the file: it is measured again");
  }
  return times.get<std::map<std::string, double>>();
}

// A call that can be measured, about how long it takes, and the bytes of its arguments and results.
struct Wanted {
  const OperatorCall* call;
  double about;
  int64_t bytes;
};

// Tries a call alone: what it takes, or none if that is more memory than `most_bytes`.
std::optional<Wanted> try_call(const OperatorCall& call, int64_t most_bytes, std::vector<std::string>& failed) {
  const auto is_too_large = [&](int64_t bytes) {
    if (bytes > most_bytes) failed.push_back(call.key + ": its tensors take " + std::to_string(bytes >> 20) + " MiB");
    return bytes > most_bytes;
  };
  const int64_t given = bytes_of_tensors(call.arguments);
  if (is_too_large(given)) return std::nullopt;
  const std::vector<c10::IValue> arguments = with_memory(call);
  const int64_t bytes = given + bytes_of_tensors(repeat_call(call, arguments));
  if (is_too_large(bytes)) return std::nullopt;
  const double begin = seconds_of(ClockOf::kThread);
  const std::vector<c10::IValue> results = repeat_call(call, arguments);
  return Wanted{&call, seconds_of(ClockOf::kThread) - begin, bytes};
}

// Tries each call alone, so that what fails fails here and not on one of several ranks.
std::vector<Wanted> try_alone(const std::vector<const OperatorCall*>& calls, int64_t most_bytes,
                              std::vector<std::string>& failed) {
  std::vector<Wanted> wanted;
  for (const OperatorCall* const call : calls) {
    try {
      if (const auto one = try_call(*call, most_bytes, failed)) wanted.push_back(*one);
    } catch (const c10::Error& error) {
      const std::string why = error.what_without_backtrace();
      failed.push_back(call->key + ": " + why.substr(0, why.find('\n')));
    }
  }
  return wanted;
}

std::vector<Wanted> that_run(const std::vector<const OperatorCall*>& calls, HostShare share,
                             std::vector<std::string>& failed) {
  std::vector<Wanted> wanted;
  run_ranks(
      1, [&](Communicator&) { wanted = try_alone(calls, host_memory() / 8 / share.copies, failed); },
      static_cast<int>(share.threads));
  return wanted;
}

// Runs `work` on the ranks of the share, with the clock of their times.
void run_share(HostShare share, const std::function<void(Communicator&, ClockOf)>& work) {
  run_ranks(
      static_cast<int>(share.copies),
      [&](Communicator& group) {
        at::globalContext().setFlushDenormal(true);  // of this thread: factors below one are applied many times
        work(group, share.threads == 1 ? ClockOf::kThread : ClockOf::kWall);
      },
      static_cast<int>(share.threads));
}

MeasuredTime time_of(Communicator& group, const Wanted& wanted, double seconds, ClockOf clock) {
  RepeatedCalls calls(*wanted.call, wanted.bytes, wanted.about);
  const int together =
      static_cast<int>(std::clamp(kTogether / std::max(wanted.about, 1e-9), 1.0, double{kMostTogether}));
  return least_time(
      group, seconds, together, [&] { calls.next(); }, clock);
}

}  // namespace

HostShare HostShare::of(int64_t ranks, int64_t cores) {
  return {std::min(ranks, cores), std::max<int64_t>(1, cores / ranks)};
}

OperatorTimes::OperatorTimes(std::string path, int64_t cores) : path_(std::move(path)), cores_(cores) {
  if (!std::filesystem::exists(path_)) return;
  std::ifstream file(path_);
  std::stringstream text;
  text << file.rdbuf();
  TORCH_CHECK_VALUE(file.is_open() && !text.bad(), "operators file '", path_, "': it cannot be read\n  have  ",
                    std::strerror(errno), "\n  fix   remove it: it is measured again");
  try {
    const Json all = Json::parse(text.str());
    const auto host = all.at("host").get<std::string>();
    for (const auto& [share, times] : all.at("operators").items())
      times_[share_of(share, path_)] = times_of(times, share, path_);
    const Json marked = all.value("not quiet", Json::object());
    for (const auto& [share, keys] : marked.items())
      unsteady_[share_of(share, path_)] = keys.get<std::set<std::string>>();
    if (host == this_host(cores_)) return;
    other_host_ = host;
    times_.clear();
    unsteady_.clear();
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(false, "operators file '", path_, "': it is not one of `moonhalo plan`\n  have  ", error.what(),
                      "\n  fix   remove the file: it is measured again");
  }
}

std::string OperatorTimes::path_beside(const std::string& machine) {
  std::filesystem::path path(machine);
  return path.replace_extension(".operators.json").string();
}

std::vector<const OperatorCall*> OperatorTimes::without_time(const std::vector<OperatorCall>& calls,
                                                             HostShare share) const {
  const auto times = times_.find(share);
  std::vector<const OperatorCall*> missing;
  for (const OperatorCall& call : calls) {
    if (times == times_.end() || !times->second.contains(call.key)) missing.push_back(&call);
  }
  return missing;
}

int64_t OperatorTimes::measurable(const std::vector<OperatorCall>& calls, HostShare share) const {
  const at::NoGradGuard without_graph;
  std::vector<std::string> failed;
  return std::ssize(that_run(without_time(calls, share), share, failed));
}

OperatorTimes::Report OperatorTimes::measure(const std::vector<OperatorCall>& calls, HostShare share, double seconds) {
  Report report;
  const std::vector<const OperatorCall*> missing = without_time(calls, share);
  report.known = std::ssize(calls) - std::ssize(missing);
  if (missing.empty()) return report;
  const at::NoGradGuard without_graph;
  const std::vector<Wanted> wanted = that_run(missing, share, report.failed);
  run_share(share, [&](Communicator& group, ClockOf clock) {
    for (const Wanted& one : wanted) {
      const MeasuredTime time = time_of(group, one, seconds, clock);
      if (group.rank() != 0) continue;
      take(share, one.call->key, time.median, time.stable);  // steps are compared by their medians
      report.stable = report.stable && time.stable;
      ++report.measured;
    }
  });
  return report;
}

OperatorTimes::Report OperatorTimes::measure_step(const std::vector<OperatorCall>& calls, const StepCalls& step,
                                                  HostShare share, double seconds) {
  if (step.events.empty() || peak_bytes(step) > host_memory() / 4 / share.copies) return measure(calls, share, seconds);
  Report report;
  const std::vector<const OperatorCall*> missing = without_time(calls, share);
  report.known = std::ssize(calls) - std::ssize(missing);
  if (missing.empty()) return report;
  const at::NoGradGuard without_graph;
  const std::vector<Wanted> wanted = that_run(missing, share, report.failed);
  if (wanted.empty()) return report;
  std::unordered_set<std::string> left_out;
  for (const OperatorCall* const call : missing) left_out.insert(call->key);
  for (const Wanted& one : wanted) left_out.erase(one.call->key);
  ReplayTimes found;
  run_share(share, [&](Communicator& group, ClockOf clock) {
    ReplayTimes mine = replay_step(group, step, left_out, seconds * static_cast<double>(missing.size()), clock);
    if (group.rank() == 0) found = std::move(mine);
  });
  for (const OperatorCall* const call : missing) {
    if (const auto failed = found.failed.find(call->key); failed != found.failed.end())
      report.failed.push_back(call->key + ": " + failed->second);
    const auto time = found.seconds.find(call->key);
    if (time == found.seconds.end()) continue;
    take(share, call->key, time->second, found.stable);
    ++report.measured;
  }
  report.stable = found.stable;
  return report;
}

void OperatorTimes::take(HostShare share, const std::string& key, double seconds, bool is_stable) {
  times_[share][key] = seconds;
  if (is_stable) {
    unsteady_[share].erase(key);
  } else {
    unsteady_[share].insert(key);
  }
}

int64_t OperatorTimes::unsteady(const std::vector<OperatorCall>& calls, HostShare share) const {
  const auto keys = unsteady_.find(share);
  if (keys == unsteady_.end()) return 0;
  return std::count_if(calls.begin(), calls.end(),
                       [&](const OperatorCall& call) { return keys->second.contains(call.key); });
}

void OperatorTimes::measure_again() { older_ = std::exchange(times_, {}); }

void OperatorTimes::give_to(Machine& machine, HostShare share) const {
  machine.operators.clear();
  const auto found = times_.find(share);
  if (found == times_.end()) return;
  for (const auto& [key, seconds] : found->second) machine.operators[key] = {{share.copies * share.threads, seconds}};
}

void OperatorTimes::save() const {
  Json all{{"host", this_host(cores_)}, {"operators", Json::object()}};
  Times kept = times_;
  for (const auto& [share, times] : older_) kept[share].insert(times.begin(), times.end());
  for (const auto& [share, times] : kept) all["operators"][text_of(share)] = times;
  for (const auto& [share, keys] : unsteady_) {
    if (!keys.empty()) all["not quiet"][text_of(share)] = keys;
  }
  const std::error_code failed = replace_file(path_, all.dump(1) + "\n");
  TORCH_CHECK_VALUE(!failed, "operators file '", path_, "': it cannot be written\n  have  ", failed.message(),
                    "\n  fix   name a machine file in a folder that you own, or plan with --no-measure");
}

}  // namespace moonhalo
