// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/bind/nan_watch.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "moonhalo/engine/profile/find_nan.h"
#include "moonhalo/engine/profile/recorder.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/calls.h"
#include "moonhalo/scripting/core/error_place.h"
#include "moonhalo/scripting/core/module_scope.h"
#include "moonhalo/scripting/core/objects.h"
#include "moonhalo/scripting/core/values.h"

namespace moonhalo::scripting {
namespace {

/// Autograd's own check of backward functions has one switch for all threads of the process. `judges`: whether NaN is
/// an error in all of them.
class CheckOfBackward {
 public:
  explicit CheckOfBackward(bool judges) { change(1, judges); }
  ~CheckOfBackward() { change(-1, true); }
  CheckOfBackward(const CheckOfBackward&) = delete;
  CheckOfBackward& operator=(const CheckOfBackward&) = delete;

 private:
  static void change(int by, bool judges) {
    static std::mutex mutex;
    static int users = 0;
    const std::lock_guard lock(mutex);
    const bool before = users > 0;
    users += by;
    if (before != (users > 0)) torch::autograd::AnomalyMode::set_enabled(users > 0, judges);
  }
};

bool has_nan(const c10::IValue& value) {
  if (value.isTensor()) return find_nan(value.toTensor()).has_value();
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (find_nan(tensor)) return true;
    }
  }
  return false;
}

template <class Values>
bool any_nan(const Values& values) {
  for (const c10::IValue& value : values) {
    if (has_nan(value)) return true;
  }
  return false;
}

/// Notes of the operators of one rank. `judges`: false in a dry run, where values of other ranks are zeros. It looks,
/// as a real run would, and says nothing.
class NanWatch {
 public:
  explicit NanWatch(bool judges)
      : judges(judges),
        backward_(judges),
        callback_(
            at::addThreadLocalCallback(at::RecordFunctionCallback(enter, leave)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}))) {
    ++moonhalo::detail::hook_users;
  }
  ~NanWatch() {
    --moonhalo::detail::hook_users;
    at::removeCallback(callback_);
  }
  NanWatch(const NanWatch&) = delete;
  NanWatch& operator=(const NanWatch&) = delete;

  const bool judges;
  std::string first_operator;  ///< that made NaN of no NaN within the module that runs

  std::string forward_of_last_backward() const {
    const auto found = forward_.find(last_backward_);
    return found == forward_.end() ? "" : found->second;
  }

 private:
  static constexpr size_t kMostPlaces = 1000000;
  struct Entered : at::ObserverContext {
    bool outermost = false, came_in = false, looks = false;
  };

  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& call);
  static void leave(const at::RecordFunction& call, at::ObserverContext* context);

  static std::string here(const at::RecordFunction& call) {
    std::string line = recorded_state() != nullptr ? script_position(recorded_state()) : "";
    if (line.ends_with(": ")) line.resize(line.size() - 2);
    return std::string(call.name()) + (line.empty() ? "" : " at " + line);
  }

  int depth_ = 0;
  bool looking_ = false;  // what this does itself is not looked at
  std::string place_;     // of the outermost operator under way
  int64_t last_backward_ = -1;
  std::unordered_map<int64_t, std::string> forward_;  // by autograd's number of the node
  CheckOfBackward backward_;
  at::CallbackHandle callback_;
};

thread_local std::unique_ptr<NanWatch> watch_of_thread;

std::unique_ptr<at::ObserverContext> NanWatch::enter(const at::RecordFunction& call) {
  NanWatch* const watch = watch_of_thread.get();
  if (watch == nullptr || watch->looking_) return nullptr;
  if (call.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    if (call.seqNr() >= 0) watch->last_backward_ = call.seqNr();
    return nullptr;
  }
  auto entered = std::make_unique<Entered>();
  entered->looks = true;
  entered->outermost = watch->depth_++ == 0;
  if (entered->outermost) {
    watch->looking_ = true;
    entered->came_in = any_nan(call.inputs());
    watch->place_ = here(call);
    if (call.seqNr() >= 0 && recorded_state() != nullptr) watch->place_ += module_place(recorded_state());
    watch->looking_ = false;
  }
  if (call.seqNr() >= 0) {
    if (watch->forward_.size() >= kMostPlaces) watch->forward_.clear();
    watch->forward_[call.seqNr()] = watch->place_;
  }
  return entered;
}

void NanWatch::leave(const at::RecordFunction& call, at::ObserverContext* context) {
  NanWatch* const watch = watch_of_thread.get();
  if (watch == nullptr || context == nullptr || watch->looking_) return;
  const auto& entered = *static_cast<Entered*>(context);
  --watch->depth_;
  if (!entered.outermost || entered.came_in || !watch->first_operator.empty()) return;
  watch->looking_ = true;
  if (any_nan(call.outputs())) watch->first_operator = here(call);
  watch->looking_ = false;
}

const char kDetectNanKey = 0;

const luaL_Reg kNoMethodsOfDetectNan[] = {{nullptr, nullptr}};

/// In the registry of the state from the first watch on; ends the watch when the state is closed.
struct DetectNan {
  DetectNan() = default;
  ~DetectNan() { watch_of_thread.reset(); }
  DetectNan(const DetectNan&) = delete;
};

}  // namespace

template <>
inline constexpr const char* kObjectName<DetectNan> = "DetectNan";

namespace {

/// Calls seen(value) for each tensor among the values from `first` to the top, and those in lists and tables of them.
template <class Seen>
void each_tensor(lua_State* lua, int first, const Seen& seen) {
  const int last = lua_gettop(lua);
  luaL_checkstack(lua, 4, "too many values");
  for (int index = first; index <= last; ++index) {
    if (const at::Tensor* tensor = to_tensor(lua, index)) {
      seen(*tensor);
    } else if (lua_istable(lua, index)) {
      for (lua_pushnil(lua); lua_next(lua, index); lua_pop(lua, 1)) {
        if (const at::Tensor* tensor = to_tensor(lua, -1)) seen(*tensor);
      }
    }
  }
}

class NanScope final : public ModuleScope {
 public:
  explicit NanScope(lua_State* lua) : before_(std::exchange(watch_of_thread->first_operator, {})) {
    each_tensor(lua, 2, [this](const at::Tensor& tensor) { came_in_ = came_in_ || find_nan(tensor); });
  }
  ~NanScope() override {
    if (watch_of_thread != nullptr) watch_of_thread->first_operator = std::move(before_);
  }
  std::string problem(lua_State* lua) const override;

 private:
  bool came_in_ = false;
  std::string before_;
};

std::string NanScope::problem(lua_State* lua) const {
  if (watch_of_thread == nullptr || !watch_of_thread->judges) return "";
  std::optional<NanPlace> place;
  each_tensor(lua, 2, [&place](const at::Tensor& tensor) {
    if (!place) place = find_nan(tensor);
  });
  if (!place) return "";
  const std::string& made_by = watch_of_thread->first_operator;
  std::string cause = "NaN made by " + made_by;
  if (made_by.empty()) cause = "the module made NaN, and no operator that it called did";
  if (came_in_) cause = "NaN was in what the module was called with";
  return script_position(lua) + "detect_nan: " + cause + "\n  have  " + place->text() + ", in a result of the module" +
         module_place(lua);
}

std::unique_ptr<ModuleScope> make_nan_scope(lua_State* lua) {
  return watch_of_thread == nullptr ? nullptr : std::make_unique<NanScope>(lua);
}

[[maybe_unused]] const bool scope_is_set = (set_module_scope(&make_nan_scope), true);

}  // namespace

bool set_detect_nan(lua_State* lua, bool on) {
  const bool before = watch_of_thread != nullptr;
  if (on == before) return before;
  watch_of_thread = on ? std::make_unique<NanWatch>(!context(lua).world->is_fake()) : nullptr;
  // One for all watches: the collection of an earlier one would end a later watch, amid an operator.
  if (lua_rawgetp(lua, LUA_REGISTRYINDEX, &kDetectNanKey) == LUA_TNIL) {
    define_object<DetectNan>(lua, kNoMethodsOfDetectNan);
    push_object(lua, std::make_shared<DetectNan>());
    lua_rawsetp(lua, LUA_REGISTRYINDEX, &kDetectNanKey);
  }
  lua_pop(lua, 1);
  return before;
}

void BackwardWarnings::process(const c10::Warning& warning) {
  const bool of_check = warning.msg().starts_with("Error detected in ") ||
                        warning.msg().starts_with("aten::_is_any_true: no sharding rule");
  if (watch_of_thread == nullptr || !of_check) before_->process(warning);
}

std::string place_of_backward(const std::string& message) {
  if (watch_of_thread == nullptr || message.find("returned nan values") == std::string::npos) return "";
  const std::string forward = watch_of_thread->forward_of_last_backward();
  return forward.empty() ? "" : "\n  of    " + forward;
}

}  // namespace moonhalo::scripting
