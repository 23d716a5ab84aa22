// SPDX-License-Identifier: Apache-2.0
// The functions of moonhalo_c.h: they check what C may give wrong, and let nothing out but a status.
#include "moonhalo/scripting/embed/moonhalo_c.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>

#include "moonhalo/engine/base/as_rank.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/engine/profile/recorder.h"
#include "moonhalo/scripting/embed/c_transport.h"
#include "moonhalo/scripting/embed/float_environment.h"
#include "moonhalo/scripting/embed/host_session.h"
#include "moonhalo/version.h"

using moonhalo::Block;
using moonhalo::scripting::attempt;
using moonhalo::scripting::DefaultFloatEnvironment;
using moonhalo::scripting::HostSession;
using moonhalo::scripting::Outcome;

/// A handle: it outlives its session, so that calls after mh_close are known as that.
struct mh_session {
  std::unique_ptr<HostSession> host;
};

namespace {

constexpr int version_number(const char* text) {
  int parts[3] = {0, 0, 0}, part = 0;
  for (; *text != '\0'; ++text) {
    if (*text == '.') {
      ++part;
    } else {
      parts[part] = 10 * parts[part] + (*text - '0');
    }
  }
  return 10000 * parts[0] + 100 * parts[1] + parts[2];
}
static_assert(version_number(moonhalo::kVersion) == MH_VERSION);

std::string& last_error() {
  static thread_local std::string text;
  return text;
}
thread_local const char* instead_of_text = nullptr;  // where a message could not be made
thread_local bool error_repeats = false;

/// Makes the status that every function returns. `work` gives an Outcome.
template <class Work>
mh_status guarded(const Work& work) noexcept {
  instead_of_text = nullptr;
  error_repeats = false;
  try {
    const DefaultFloatEnvironment numbers;
    Outcome outcome;
    const Outcome local = attempt([&] { outcome = work(); });
    const Outcome& result = local.status != MH_OK ? local : outcome;
    last_error() = result.text;
    error_repeats = result.repeats;
    return result.status;
  } catch (const std::bad_alloc&) {
    instead_of_text = "no memory for the message of an error";
    return MH_MEMORY;
  } catch (...) {  // nothing may reach C
    instead_of_text = "an exception that is not a std::exception";
    return MH_INTERNAL;
  }
}

[[noreturn]] void usage(const std::string& text) { C10_THROW_ERROR(ValueError, text); }

struct AddressLess {
  using is_transparent = void;
  static const mh_session* address(const std::unique_ptr<mh_session>& owned) { return owned.get(); }
  static const mh_session* address(const mh_session* given) { return given; }
  template <typename A, typename B>
  bool operator()(const A& a, const B& b) const {
    return std::less<>()(address(a), address(b));
  }
};

/// All handles that mh_open has given.
class Handles {
 public:
  mh_session* add(std::unique_ptr<HostSession> host) {
    const std::lock_guard lock(mutex_);
    return given_.emplace(std::make_unique<mh_session>(mh_session{std::move(host)})).first->get();
  }
  /// The session of a handle that has not been closed.
  HostSession& session(const mh_session* handle, const char* function) {
    const std::string name = function;
    if (handle == nullptr) usage(name + ": no session\n  have  a null pointer\n  fix   open one with mh_open");
    const std::lock_guard lock(mutex_);
    const auto found = given_.find(handle);
    if (found == given_.end())
      usage(name + ": no session\n  have  an address that mh_open has not given\n  fix   open one with mh_open");
    if ((*found)->host == nullptr)
      usage(name + ": the session is closed\n  have  a call after its mh_close\n  fix   open another with mh_open");
    return *(*found)->host;
  }
  /// Calls fn(handle, session) for each open session of this thread.
  template <class Fn>
  void each_of_this_thread(const Fn& fn) {
    const std::lock_guard lock(mutex_);
    for (const auto& handle : given_) {
      if (handle->host != nullptr && handle->host->is_of_this_thread()) fn(handle.get(), *handle->host);
    }
  }
  std::unique_ptr<HostSession> close(const mh_session* handle) {
    const std::lock_guard lock(mutex_);
    return std::move((*given_.find(handle))->host);
  }

 private:
  std::mutex mutex_;
  std::set<std::unique_ptr<mh_session>, AddressLess> given_;
};

/// The ranges of this thread that have begun and not ended are numbered from 1: how many there are, and the last one
/// that began while something recorded, 0 for none.
thread_local int64_t open_ranges = 0, last_recorded = 0;

/// A range of the solver in the profile of each session of its thread.
struct RecordedRange {
  int64_t number;
  std::map<const mh_session*, std::unique_ptr<moonhalo::RecordRange>> sessions = {};
};
std::vector<RecordedRange>& recorded_ranges() {
  static thread_local std::vector<RecordedRange> ranges;
  return ranges;
}

/// The end of a function that cannot fail.
mh_status done() {
  instead_of_text = "";
  error_repeats = false;
  return MH_OK;
}

Handles& handles() {
  static auto* all = new Handles;  // programs may close sessions when static objects have ended
  return *all;
}

HostSession& checked(mh_session* session, const char* function) { return handles().session(session, function); }

/// The world of the script, and one on which the ranks agree how calls ended.
std::vector<moonhalo::CommunicatorPtr> make_worlds(const mh_options& options) {
  const auto make = [&] {
    if (options.mpi_comm != nullptr) return moonhalo::make_mpi_communicator(options.mpi_comm);
    if (options.mpi_fcomm != nullptr) return moonhalo::make_mpi_communicator_from_fortran(*options.mpi_fcomm);
    return moonhalo::make_self_communicator();
  };
  if (options.mpi_comm == nullptr && options.mpi_fcomm == nullptr && options.transport != nullptr)
    return moonhalo::make_transport_communicators(moonhalo::scripting::make_c_transport(*options.transport), 2);
  const moonhalo::CommunicatorPtr world = make();
  return {world, make()};
}

/// Refuses what keeps this rank from knowing the others.
void check_readable(const mh_options* options) {
  if (options == nullptr) usage("mh_open: no options\n  have  a null pointer");
  if (options->size != sizeof(mh_options)) {
    usage("mh_open: options of an unknown size\n  have  size " + std::to_string(options->size) +
          ", this library's is " + std::to_string(sizeof(mh_options)) +
          "\n  fix   mh_options options = MH_OPTIONS; with the header of this library");
  }
}

/// Says what else is wrong with the arguments of mh_open; "" if nothing is. All ranks receive it.
std::string problem_of_open(const mh_options& options, mh_session** session) {
  if (session == nullptr) return "no place for the session\n  have  a null pointer";
  const int given = (options.mpi_comm != nullptr) + (options.mpi_fcomm != nullptr) + (options.transport != nullptr);
  if (given > 1) {
    return std::to_string(given) +
           " communicators\n  have  more than one of mpi_comm, mpi_fcomm and transport\n  fix   give one of them";
  }
  for (const auto& [name, seconds] :
       {std::pair{"timeout_s", options.timeout_s}, {"call_budget_s", options.call_budget_s}}) {
    if (seconds != 0 && !(seconds >= 0.001 && seconds <= 1e9))
      return std::string(name) + " " + std::to_string(seconds) + " is not a number of seconds from 0.001 to 1e9";
  }
  if (options.script == nullptr) return "no script\n  have  a null pointer";
  return "";
}

std::optional<std::chrono::milliseconds> time_limit(double seconds) {
  if (!(seconds >= 0.001 && seconds <= 1e9)) return std::nullopt;
  return std::chrono::milliseconds(std::llround(1000 * seconds));
}

at::ScalarType dtype_of(int dtype) {
  switch (dtype) {
    case MH_FLOAT32:
      return at::kFloat;
    case MH_FLOAT64:
      return at::kDouble;
    case MH_INT32:
      return at::kInt;
    case MH_INT64:
      return at::kLong;
    case MH_COMPLEX64:
      return at::kComplexFloat;
    case MH_COMPLEX128:
      return at::kComplexDouble;
    default:
      usage(std::to_string(dtype) + " is not a mh_dtype");
  }
}

bool is_known(const mh_block& block) { return block.size == sizeof(mh_block); }

/// The block in the script's order of dims.
Block to_block(const mh_block& given) {
  if (!is_known(given)) {
    usage("a block of an unknown size\n  have  size " + std::to_string(given.size) + ", this library's is " +
          std::to_string(sizeof(mh_block)) +
          "\n  fix   set block.size = sizeof(mh_block), with the header of this library");
  }
  if (given.ndim < 1 || given.ndim > MH_MAX_DIMS)
    usage("a block of " + std::to_string(given.ndim) + " dims\n  fix   1 to 8");
  if (given.order != MH_LAST_FASTEST && given.order != MH_FIRST_FASTEST) {
    usage(std::to_string(given.order) + " is not a mh_order");
  }
  const bool reverse = given.order == MH_FIRST_FASTEST;
  const auto list = [&](const int64_t* values) {
    std::vector<int64_t> result(values, values + given.ndim);
    if (reverse) std::reverse(result.begin(), result.end());
    return result;
  };
  const auto unless_zero = [&](const int64_t* values) {
    const bool zero = std::all_of(values, values + given.ndim, [](int64_t value) { return value == 0; });
    return zero ? std::vector<int64_t>{} : list(values);
  };
  return {given.data,
          dtype_of(given.dtype),
          list(given.extent),
          unless_zero(given.stride),
          list(given.ghost_low),
          list(given.ghost_high),
          list(given.begin),
          unless_zero(given.global)};
}

/// Fortran's arrays are the engine's with their dims reversed.
std::string note_on(const mh_block& block) {
  if (!is_known(block) || block.order != MH_FIRST_FASTEST) return "";
  return "\n  note  dim 0 here is the array's last, and what Fortran counts from 1 counts from 0";
}

/// Says what is wrong with the arguments of a call; "" if nothing is.
std::string problem_of_call(const char* function, int n, const double* in, int m, const double* out) {
  if (function == nullptr) return "no name of a function\n  have  a null pointer";
  if (n < 0 || m < 0) return "negative counts of numbers\n  have  " + std::to_string(n) + " and " + std::to_string(m);
  if ((n > 0 && in == nullptr) || (m > 0 && out == nullptr)) {
    return "no place for numbers\n  have  " + std::to_string(n) + " to give, " + std::to_string(m) +
           " to take, and a null pointer";
  }
  return "";
}

/// By which the ranks know it as one call.
std::string name_of_call(const char* call, const char* function) {
  return function == nullptr ? call : call + ("('" + std::string(function)) + "')";
}

}  // namespace

extern "C" {

mh_status mh_open(const mh_options* options, mh_session** session) {
  return guarded([&]() -> Outcome {
    if (session != nullptr) *session = nullptr;
    check_readable(options);
    const std::string problem = problem_of_open(*options, session);
    const moonhalo::DefaultTimeLimit limit(time_limit(options->timeout_s));
    std::vector<moonhalo::CommunicatorPtr> worlds;
    const Outcome made = attempt([&] { worlds = make_worlds(*options); });
    if (made.status != MH_OK && !problem.empty()) usage("mh_open: " + problem);
    if (made.status != MH_OK) return made;
    auto opened = std::make_unique<HostSession>(worlds[0], worlds[1], time_limit(options->call_budget_s),
                                                options->check_finite != 0);
    if (!problem.empty()) return opened->refuse("mh_open", problem);
    const Outcome outcome = opened->open(options->script, options->settings == nullptr ? "" : options->settings);
    if (outcome.status == MH_OK) *session = handles().add(std::move(opened));
    return outcome;
  });
}

mh_status mh_close(mh_session* session) {
  return guarded([&] {
    const Outcome outcome = session == nullptr ? Outcome{} : checked(session, "mh_close").check_thread("mh_close");
    if (outcome.status == MH_OK && session != nullptr) handles().close(session).reset();
    return outcome;
  });
}

mh_status mh_field(mh_session* session, const char* name, const mh_block* block) {
  return guarded([&] {
    HostSession& host = checked(session, "mh_field");
    if (name == nullptr || *name == '\0') return host.refuse("mh_field", "no name");
    if (block == nullptr) return host.field(name, nullptr, false);
    const bool filled = is_known(*block) && block->ghosts_filled != 0;
    return host.field(
        name, [block] { return to_block(*block); }, filled, note_on(*block));
  });
}

mh_status mh_boxes(mh_session* session, const char* name, int count, const mh_block* boxes) {
  return guarded([&] {
    HostSession& host = checked(session, "mh_boxes");
    if (name == nullptr || *name == '\0') return host.refuse("mh_boxes", "no name");
    if (count < 0 || (count > 0 && boxes == nullptr))
      return host.refuse("mh_boxes", "no boxes\n  have  a count of " + std::to_string(count) +
                                         (boxes == nullptr ? " and a null pointer" : ""));
    const auto make = [&] {
      std::vector<Block> blocks;
      for (int i = 0; i < count; ++i) blocks.push_back(to_block(boxes[i]));
      return blocks;
    };
    return host.boxes(name, make, count == 0 ? "" : note_on(boxes[0]));
  });
}

mh_status mh_call(mh_session* session, const char* function, int n, const double* in, int m, double* out) {
  return guarded([&] {
    HostSession& host = checked(session, "mh_call");
    const std::string problem = problem_of_call(function, n, in, m, out);
    return problem.empty() ? host.call(function, {in, static_cast<size_t>(n)}, {out, static_cast<size_t>(m)})
                           : host.refuse(name_of_call("mh_call", function), problem);
  });
}

mh_status mh_call_begin(mh_session* session, const char* function, int n, const double* in) {
  return guarded([&] {
    HostSession& host = checked(session, "mh_call_begin");
    const std::string problem = problem_of_call(function, n, in, 0, nullptr);
    return problem.empty() ? host.call_begin(function, {in, static_cast<size_t>(n)})
                           : host.refuse(name_of_call("mh_call_begin", function), problem);
  });
}

mh_status mh_call_end(mh_session* session, int m, double* out) {
  return guarded([&] {
    HostSession& host = checked(session, "mh_call_end");
    const std::string problem = problem_of_call("", 0, nullptr, m, out);
    if (!problem.empty()) usage("mh_call_end: " + problem);
    return host.call_end({out, static_cast<size_t>(m)});
  });
}

mh_status mh_save(mh_session* session, const char* path) {
  return guarded([&] {
    HostSession& host = checked(session, "mh_save");
    return path == nullptr ? host.refuse("mh_save", "no path\n  have  a null pointer") : host.save(path);
  });
}

mh_status mh_load(mh_session* session, const char* path) {
  return guarded([&] {
    HostSession& host = checked(session, "mh_load");
    return path == nullptr ? host.refuse("mh_load", "no path\n  have  a null pointer") : host.load(path);
  });
}

mh_status mh_sync(mh_session* session) {
  return guarded([&] { return checked(session, "mh_sync").sync(); });
}

mh_status mh_report(mh_session* session, char* text, size_t size) {
  return guarded([&]() -> Outcome {
    const HostSession& host = checked(session, "mh_report");
    if (Outcome idle = host.check_idle("mh_report"); idle.status != MH_OK) return idle;
    const std::string report = host.report();
    if (text == nullptr || size <= report.size()) {
      usage("mh_report: the text does not fit\n  have  space for " + std::to_string(text == nullptr ? 0 : size) +
            " bytes\n  fix   give " + std::to_string(report.size() + 1));
    }
    std::memcpy(text, report.c_str(), report.size() + 1);
    return {};
  });
}

mh_status mh_refuse(mh_session* session, const char* call, const char* problem) {
  return guarded([&] {
    HostSession& host = checked(session, "mh_refuse");
    if (call == nullptr || problem == nullptr) usage("mh_refuse: no call, or no problem\n  have  a null pointer");
    return host.refuse(call, problem);
  });
}

mh_status mh_range_begin(const char* name) {
  if (name != nullptr && !moonhalo::hooks_are_on()) [[likely]] {
    ++open_ranges;
    return done();
  }
  return guarded([&]() -> Outcome {
    if (name == nullptr) usage("mh_range_begin: no name\n  have  a null pointer\n  fix   give the name of the range");
    RecordedRange range{open_ranges + 1};
    handles().each_of_this_thread([&](const mh_session* handle, HostSession& session) {
      const moonhalo::AsRank rank(session.rank_context());
      range.sessions.emplace(handle, std::make_unique<moonhalo::RecordRange>(name));
    });
    recorded_ranges().push_back(std::move(range));
    last_recorded = ++open_ranges;
    return {};
  });
}

mh_status mh_range_end(void) {
  if (open_ranges > last_recorded) [[likely]] {
    --open_ranges;
    return done();
  }
  return guarded([&]() -> Outcome {
    if (open_ranges == 0)
      usage(
          "mh_range_end: no range is open on this thread\n  have  an end without a begin\n  fix   call "
          "mh_range_begin first");
    std::vector<RecordedRange>& all = recorded_ranges();
    RecordedRange range = std::move(all.back());
    all.pop_back();
    --open_ranges;
    last_recorded = all.empty() ? 0 : all.back().number;
    handles().each_of_this_thread([&](const mh_session* handle, HostSession& session) {
      const moonhalo::AsRank rank(session.rank_context());
      range.sessions.erase(handle);
    });
    return {};  // what is left is of sessions that were closed, and records nothing
  });
}

int mh_error_repeats(void) { return error_repeats ? 1 : 0; }

const char* mh_error(void) { return instead_of_text != nullptr ? instead_of_text : last_error().c_str(); }

int mh_version(void) { return version_number(moonhalo::kVersion); }

}  // extern "C"
