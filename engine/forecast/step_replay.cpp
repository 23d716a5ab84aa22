// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/step_replay.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "moonhalo/engine/forecast/operator_work.h"

namespace moonhalo {
namespace {

using Event = StepCalls::Event;

constexpr int kLeastReplays = 5, kMostReplays = 40, kLeastOfLong = 2;
constexpr double kLongSeconds = 20;
constexpr double kAgree = 0.03;
constexpr double kLargest = 1e4;
constexpr double kNone = std::numeric_limits<double>::infinity();

bool is_pooling(const OperatorCall& call) { return call.name.name.starts_with("aten::max_pool2d"); }

bool has_fractions(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type());
}

// False if some are NaN. Kernels that compare numbers are not there for all dtypes, such as float8.
bool are_usual(const at::Tensor& numbers) {
  const at::Tensor wide = numbers.to(numbers.is_complex() ? at::kComplexDouble : at::kDouble);
  return numbers.numel() == 0 || wide.abs().max().item<double>() <= kLargest;
}

// The whole of a block as elements of this dtype.
at::Tensor elements_of(const at::Tensor& bytes, const at::TensorOptions& options, int64_t item) {
  return at::empty({0}, options.device(at::kCPU)).set_(bytes.storage(), 0, {bytes.numel() / item}, {1});
}

// The blocks that calls return, and those that are first used by a call that overwrites them.
struct BlockUses {
  std::unordered_set<uint32_t> returned, overwritten;

  BlockUses(const StepCalls& step, const std::unordered_set<std::string>& left_out) {
    std::unordered_set<uint32_t> used;
    for (const Event& event : step.events) {
      if (event.kind != Event::kCalled || left_out.contains(event.call.key)) continue;
      for (size_t i = 0; i < event.arguments.size(); ++i) {
        const bool is_first = used.insert(event.arguments[i].block).second;
        if (is_first && i == 0 && overwrites_first(event.call.name.name)) overwritten.insert(event.arguments[i].block);
      }
      for (const StepCalls::Place& result : event.results) {
        if (used.insert(result.block).second) returned.insert(result.block);
      }
    }
  }
};

class StepReplay {
 public:
  StepReplay(const StepCalls& step, const std::unordered_set<std::string>& left_out, ClockOf clock)
      : step_(step),
        left_out_(left_out),
        clock_(clock),
        reading_(seconds_of_reading(clock)),
        uses_(step, left_out),
        positions_(step.events.size()) {}

  // Returns the seconds of all calls together.
  double run() {
    begin_step();
    double sum = 0;
    for (size_t i = 0; i < step_.events.size(); ++i) {
      const Event& event = step_.events[i];
      if (event.kind == Event::kFreed) {
        blocks_.erase(event.block);
      } else if (event.kind == Event::kMade) {
        if (!uses_.returned.contains(event.block)) make(event.block, event.bytes);
      } else if (!left_out_.contains(event.call.key) && !failed_.contains(event.call.key)) {
        sum += call(event, positions_[i]);
      }
    }
    ++runs_;
    return sum;
  }

  // By key; none of calls that failed.
  std::map<std::string, double> seconds() const {
    std::map<std::string, std::pair<double, double>> sums;
    for (size_t i = 0; i < positions_.size(); ++i) {
      const std::string& key = step_.events[i].call.key;
      if (positions_[i].times.empty() || failed_.contains(key)) continue;
      auto& [sum, count] = sums[key];
      sum += median_of(positions_[i].times);
      ++count;
    }
    std::map<std::string, double> means;
    for (const auto& [key, sum] : sums) means[key] = sum.first / sum.second;
    return means;
  }
  const std::map<std::string, std::string>& failed() const { return failed_; }

 private:
  struct Block {
    at::Tensor bytes;
    bool is_set = false;      // all of it was written by the step, or filled
    bool is_indices = false;  // that a pooling has found
  };
  struct Position {
    bool is_replaced = false;  // what it returns
    std::vector<double> times;
  };

  // Blocks that the last replay has left are freed, and those that it has freed are made again.
  void begin_step() {
    std::erase_if(blocks_, [&](const auto& block) { return !step_.before.contains(block.first); });
    for (const auto& [number, bytes] : step_.before) {
      if (!blocks_.contains(number)) blocks_[number].bytes = at::empty({bytes}, at::kByte);
    }
  }

  // A message or a kernel that is left out writes the block at once.
  void make(uint32_t number, int64_t bytes) {
    Block& block = blocks_[number];
    block.bytes = at::empty({bytes}, at::kByte);
    block.is_set = uses_.overwritten.contains(number);
    if (!block.is_set) block.bytes.zero_();
  }

  // A call that fails is left out from then on.
  double call(const Event& event, Position& position) {
    try {
      return try_call(event, position);
    } catch (const c10::Error& error) {
      const std::string why = error.what_without_backtrace();
      failed_[event.call.key] = why.substr(0, why.find('\n'));
      return 0;
    }
  }

  double try_call(const Event& event, Position& position) {
    size_t next = 0;
    const bool takes_indices = is_pooling(event.call);
    std::vector<c10::IValue> stack = with_tensors(event.call.arguments, [&](const at::Tensor& meta) {
      return argument(meta, event.arguments.at(next++), takes_indices);
    });
    const c10::OperatorName& name = event.call.name;
    const c10::OperatorHandle op =
        c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), name.overload_name.c_str());
    const double begin = seconds_of(clock_);
    op.callBoxed(stack);
    const double seconds = std::max(0.0, seconds_of(clock_) - begin - reading_);
    if (runs_ > 0) position.times.push_back(seconds);
    keep_results(event, stack, position);
    return seconds;
  }

  at::Tensor argument(const at::Tensor& meta, const StepCalls::Place& place, bool takes_indices) {
    if (meta.layout() != at::kStrided) return meta;  // it has its values
    const auto item = static_cast<int64_t>(meta.element_size());
    const int64_t end = (place.offset + elements_of_memory(meta)) * item;
    const auto found = blocks_.find(place.block);
    Block outside;  // where the step has no block of that size
    Block* block = &outside;
    if (found != blocks_.end() && found->second.bytes.numel() >= end && found->second.bytes.numel() % item == 0) {
      block = &found->second;
    } else {
      outside.bytes = at::empty({end}, at::kByte);
    }
    const at::Tensor all = elements_of(block->bytes, meta.options(), item);
    at::Tensor tensor = all.as_strided(meta.sizes(), meta.strides(), place.offset);
    if (!has_fractions(meta)) {
      if (!takes_indices || !block->is_indices) fill_with_numbers(tensor);
    } else if (!block->is_set) {
      fill_with_numbers(all);
      block->is_set = true;
    }
    copy_wrapped_number(meta, tensor);
    return tensor;
  }

  void keep_results(const Event& event, const std::vector<c10::IValue>& results, Position& position) {
    size_t next = 0;
    look_at_tensors(results, [&](const at::Tensor& tensor) {
      if (next == event.results.size() || tensor.layout() != at::kStrided) return;
      const uint32_t number = event.results[next++].block;
      if (has_fractions(tensor)) {
        position.is_replaced = position.is_replaced || (runs_ == 0 && !are_usual(tensor));
        if (position.is_replaced) fill_with_numbers(tensor);
      }
      if (!uses_.returned.contains(number)) return;
      const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
      blocks_[number] = {at::empty({0}, at::kByte).set_(tensor.storage(), 0, {bytes}, {1}), true,
                         is_pooling(event.call)};
    });
  }

  const StepCalls& step_;
  const std::unordered_set<std::string>& left_out_;
  const ClockOf clock_;
  const double reading_;  // seconds
  const BlockUses uses_;
  std::unordered_map<uint32_t, Block> blocks_;
  std::vector<Position> positions_;
  std::map<std::string, std::string> failed_;
  int64_t runs_ = 0;
};

// The largest of each of the values over all ranks.
std::vector<double> largest(Communicator& group, const std::vector<double>& values) {
  at::Tensor shared = at::tensor(values, at::kDouble);
  group.all_reduce(shared, ReduceOp::kMax);
  const auto* const all = shared.const_data_ptr<double>();
  return {all, all + shared.numel()};
}

bool agree(const std::vector<double>& sums) {
  std::vector<double> every_other[2];
  for (size_t i = 0; i < sums.size(); ++i) every_other[i % 2].push_back(sums[i]);
  const double even = median_of(every_other[0]), odd = median_of(every_other[1]);
  return std::abs(even - odd) <= kAgree * std::min(even, odd);
}

}  // namespace

int64_t peak_bytes(const StepCalls& step) {
  std::unordered_map<uint32_t, int64_t> held(step.before.begin(), step.before.end());
  int64_t sum = 0;
  for (const auto& [number, bytes] : held) sum += bytes;
  int64_t peak = sum;
  for (const Event& event : step.events) {
    if (event.kind == Event::kMade) sum += held[event.block] = event.bytes;
    if (event.kind == Event::kFreed) sum -= std::exchange(held[event.block], 0);
    peak = std::max(peak, sum);
  }
  return peak;
}

ReplayTimes replay_step(Communicator& group, const StepCalls& step, const std::unordered_set<std::string>& left_out,
                        double seconds, ClockOf clock) {
  const auto start = std::chrono::steady_clock::now();
  StepReplay replay(step, left_out, clock);
  std::vector<double> sums;
  replay.run();
  for (int count = 1; count <= kMostReplays; ++count) {
    group.barrier();
    sums.push_back(replay.run());
    const double elapsed = largest(group, {seconds_since(start)}).front();
    if (count >= kLeastReplays && elapsed > seconds) break;
    if (count >= kLeastOfLong && elapsed > kLongSeconds) break;
  }
  ReplayTimes found;
  const std::map<std::string, double> mine = replay.seconds();
  std::map<std::string, double> all;
  for (const Event& event : step.events) {
    if (event.kind == Event::kCalled && !left_out.contains(event.call.key)) all[event.call.key] = kNone;
  }
  for (const auto& [key, time] : mine) all[key] = time;
  std::vector<double> values{agree(sums) ? 0.0 : 1.0};
  for (const auto& [key, time] : all) values.push_back(time);
  const std::vector<double> slowest = largest(group, values);
  found.stable = slowest.front() == 0;
  size_t next = 1;
  for (const auto& [key, time] : all) {
    const double seconds_of_key = slowest[next++];
    const auto failed = replay.failed().find(key);
    if (seconds_of_key < kNone) {
      found.seconds[key] = seconds_of_key;
    } else {
      found.failed[key] = failed == replay.failed().end() ? "it failed on another rank" : failed->second;
    }
  }
  return found;
}

}  // namespace moonhalo
