// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/time_limit.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <utility>

#include "moonhalo/engine/comm/comm_context.h"
#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {
namespace {

constexpr std::chrono::minutes kDefault{10};
constexpr std::chrono::seconds kMostPerPoll{1};

}  // namespace

std::optional<std::chrono::milliseconds> parse_time_limit(const std::string& text) {
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(seconds >= 1e-3 && seconds <= 1e9)) return std::nullopt;
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::string seconds_text(std::chrono::milliseconds time) {
  std::ostringstream text;
  text << static_cast<double>(time.count()) / 1000 << " s";
  return text.str();
}

std::chrono::milliseconds default_time_limit() {
  if (settings().time_limit) return *settings().time_limit;
  const char* text = std::getenv("MOONHALO_TIMEOUT_S");
  if (text == nullptr || *text == '\0') return kDefault;
  const auto limit = parse_time_limit(text);
  TORCH_CHECK_VALUE(limit.has_value(),
                    "MOONHALO_TIMEOUT_S: not a number of seconds from 0.001 to 1e9\n  have  MOONHALO_TIMEOUT_S=", text,
                    "\n  fix   set it to seconds, such as 600, or unset it");
  return *limit;
}

DefaultTimeLimit::DefaultTimeLimit(std::optional<std::chrono::milliseconds> limit) : before_(settings().time_limit) {
  if (limit) base_context->settings.time_limit = limit;
}
DefaultTimeLimit::~DefaultTimeLimit() { base_context->settings.time_limit = before_; }

void GroupList::add(Communicator* group) {
  const std::lock_guard lock(mutex_);
  groups_.insert(group);
}

void GroupList::remove(Communicator* group) {
  const std::lock_guard lock(mutex_);
  groups_.erase(group);
}

void GroupList::set_timeout(std::chrono::milliseconds limit) {
  const std::lock_guard lock(mutex_);
  for (Communicator* group : groups_) group->set_timeout(limit);
}

WithoutTimeLimit::WithoutTimeLimit() { ++comm_context->scopes_without_limit; }
WithoutTimeLimit::~WithoutTimeLimit() { --comm_context->scopes_without_limit; }

WaitingTime::WaitingTime() : exceptions_(std::uncaught_exceptions()) {}

WaitingTime::~WaitingTime() {
  if (std::uncaught_exceptions() > exceptions_) comm_context->failed_waits += waited_;
}

FailedWaits::FailedWaits() : before_(std::exchange(comm_context->failed_waits, {})) {}
FailedWaits::~FailedWaits() { comm_context->failed_waits += before_; }

std::chrono::milliseconds FailedWaits::left(std::chrono::milliseconds limit) const {
  using std::chrono::milliseconds;
  const auto waited = std::chrono::duration_cast<milliseconds>(comm_context->failed_waits);
  const milliseconds least = std::clamp<milliseconds>(limit / 10, milliseconds(1), std::chrono::seconds(1));
  return std::max(limit - waited, least);
}

std::chrono::steady_clock::duration WaitingTime::poll() {
  const auto now = std::chrono::steady_clock::now();
  waited_ += std::min<std::chrono::steady_clock::duration>(now - last_, kMostPerPoll);
  last_ = now;
  return waited_;
}

std::chrono::steady_clock::duration WaitingTime::left(std::chrono::milliseconds limit) const {
  return comm_context->scopes_without_limit > 0 ? std::chrono::steady_clock::duration::max() : limit - waited_;
}

}  // namespace moonhalo
