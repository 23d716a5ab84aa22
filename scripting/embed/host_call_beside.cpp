// SPDX-License-Identifier: Apache-2.0
// Calls that run beside the solver (mh_call_begin, mh_call_end), on a thread of the session's.
#include <ATen/Functions.h>

#include <climits>

#include "moonhalo/engine/comm/communicator_backend.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/scripting/core/state.h"
#include "moonhalo/scripting/embed/host_session.h"
#include "moonhalo/scripting/embed/side_thread.h"
#include "moonhalo/scripting/embed/trainer_link.h"

namespace moonhalo::scripting {

struct HostSession::Beside {
  std::string what;  // the call, for messages
  std::string function;
  std::vector<double> in;
  Results results;
  Outcome outcome;
};

// Here, where the types are complete.
HostSession::HostSession(CommunicatorPtr world, CommunicatorPtr control,
                         std::optional<std::chrono::milliseconds> budget, bool check_finite)
    : world_(std::move(world)),
      control_(std::move(control)),
      budget_(budget),
      check_finite_(check_finite),
      state_(nullptr, lua_close) {}

HostSession::~HostSession() {
  side_.reset();
  const AsRank rank(*context_);
  if (state_ != nullptr) adopt_state();
  state_.reset();
  fields_.clear();
  boxes_.clear();
  link_.reset();
  meshes_.clear();
  context_.reset();
}

void HostSession::adopt_state() { state_data(state_.get())->thread = std::this_thread::get_id(); }

/// Shows the script the solver's memory, or copies of what it holds now.
void HostSession::show_fields(bool as_they_were) {
  for (const auto& [name, field] : fields_) {
    set_field(name, as_they_were ? from_local(to_local(field.tensor).clone(), field.spec) : field.tensor);
  }
}

Outcome HostSession::call_begin(const std::string& function, std::span<const double> in) {
  const std::string what = "mh_call_begin('" + function + "')";
  const Outcome begun = together(what, [&] {
    if (world_->size() > 1 && !backend_of(*world_).any_thread()) {
      throw HostError(MH_UNSUPPORTED, what +
                                          ": the program's MPI allows no other thread to communicate\n  have  MPI "
                                          "initialised below MPI_THREAD_MULTIPLE\n  fix   call MPI_Init_thread with "
                                          "MPI_THREAD_MULTIPLE, or use mh_call");
    }
    ++calls_;
    read_boxes();
    check_finite(MH_USAGE, what, "argument", in, /*fields=*/true, "before");
    show_fields(/*as_they_were=*/true);
  });
  if (begun.status != MH_OK) return begun;
  if (side_ == nullptr) side_ = std::make_unique<SideThread>();
  beside_ = std::make_unique<Beside>(Beside{what, function, {in.begin(), in.end()}, {}, {}});
  side_->start([this, call = beside_.get()] {
    adopt_state();
    const std::string name = "mh_call('" + call->function + "')";
    call->outcome = together_here(name, [&] {
      const auto limited = limit_call(name);
      run_in_lua([&](lua_State* lua) { call->results = call_function(lua, call->function, call->in, INT_MAX); });
      check_finite(MH_SCRIPT, name, "result", call->results.numbers, /*fields=*/false, "after");
    });
  });
  return {};
}

Outcome HostSession::call_end(std::span<double> out) {
  const Outcome here = check_thread("mh_call_end");
  if (here.status != MH_OK) return here;
  if (beside_ == nullptr) {
    return {MH_USAGE,
            "mh_call_end: no call is under way\n  have  a session without a call\n  fix   begin one with "
            "mh_call_begin"};
  }
  side_->wait();
  adopt_state();
  const std::unique_ptr<Beside> call = std::move(beside_);
  const Outcome shown = attempt([&] {
    const AsRank rank(*context_);
    show_fields(/*as_they_were=*/false);
  });
  if (call->outcome.status != MH_OK) return call->outcome;
  if (shown.status != MH_OK) return shown;
  return attempt([&] { call->results.give(call->function, out); });
}

Outcome HostSession::check_idle(const std::string& what) const {
  if (beside_ == nullptr) return {};
  return {MH_USAGE,
          what + ": a call is under way\n  have  " + beside_->what + " without its end\n  fix   mh_call_end first"};
}

}  // namespace moonhalo::scripting
