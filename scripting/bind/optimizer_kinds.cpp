// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/bind/optimizer_kinds.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <deque>
#include <functional>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/model/optimizer_fields.h"

namespace moonhalo::scripting {

namespace {

namespace optim = torch::optim;

// One field to and from Lua

using Betas = std::tuple<double, double>;

void check_range(const char* kind, std::string_view key, double value) {
  TORCH_CHECK_VALUE(!std::isnan(value), kind, ": option '", key, "' is nan, expected a number");
  TORCH_CHECK_VALUE(value >= 0 || key == "dampening", kind, ": option '", key, "' is ", value,
                    ", it must not be negative");
}

void read_field(const char* kind, const Options& options, const char* key, double& value) {
  value = options.get_number(key, value);
  check_range(kind, key, value);
}
void read_field(const char*, const Options& options, const char* key, int64_t& value) {
  value = options.get_int(key, value);
}
void read_field(const char*, const Options& options, const char* key, bool& value) {
  value = options.get_bool(key, value);
}
void read_field(const char*, const Options& options, const char* key, std::optional<int64_t>& value) {
  if (options.has(key)) value = options.get_int(key, 0);
}
void read_field(const char* kind, const Options& options, const char* key, std::optional<std::string>& value) {
  if (!options.has(key)) return;
  value = options.get_string(key, "");
  TORCH_CHECK_VALUE(value == "strong_wolfe", kind, ": option '", key, "' is '", *value,
                    "', only 'strong_wolfe' is known");
}

void push_field(lua_State* lua, const Betas& value) {
  push(lua, std::vector<double>{std::get<0>(value), std::get<1>(value)});
}
template <class T>
void push_field(lua_State* lua, const std::optional<T>& value) {
  value ? push(lua, *value) : lua_pushnil(lua);
}
template <class T>
void push_field(lua_State* lua, const T& value) {
  push(lua, value);
}

/// A tensor of saved state, copied: in the parameter's placement where it has the parameter's shape. One of device
/// "meta" has no values, and neither has the copy.
at::Tensor own_copy(const at::Tensor& value, const at::Tensor& parameter) {
  const bool identical = value.sizes() == parameter.sizes();
  const at::Tensor copy = identical ? at::empty_like(parameter, parameter.options().dtype(value.dtype()))
                                    : at::empty(value.sizes(), value.options().device(parameter.device()));
  return value.is_meta() ? copy : copy.copy_(value);
}

/// True if an optimizer with these options that has made a step has this tensor of every parameter.
template <class OptionsType>
bool is_there(const OptionsType& options, std::string_view key) {
  if constexpr (requires { options.amsgrad(); }) {
    if (key == "max_exp_avg_sq") return options.amsgrad();
  }
  if constexpr (requires { options.centered(); }) {
    if (key == "grad_avg") return options.centered();
    if (key == "momentum_buffer") return options.momentum() > 0;
  }
  return key == "exp_avg" || key == "exp_avg_sq" || key == "square_avg" || key == "sum";
}

/// The fields of the table at `index`, which was saved for parameter `number`, from 1.
struct StateReader {
  lua_State* lua;
  int index;
  int64_t number;
  const at::Tensor& parameter;
  bool by_element;  // tensors are of the parameter's shape
  std::function<bool(std::string_view)> is_there;

  void operator()(const char* key, int64_t& value) const {
    check(field(key) && to_int(lua, -1).has_value(), key, "an integer");
    value = check_int(lua, -1);
    lua_pop(lua, 1);
  }
  void operator()(const char* key, double& value) const {
    check(field(key) && lua_type(lua, -1) == LUA_TNUMBER, key, "a number");
    value = check_number(lua, -1);
    lua_pop(lua, 1);
  }
  void operator()(const char* key, at::Tensor& value) const {
    if (field(key)) {
      const at::Tensor* given = to_tensor(lua, -1);
      check(given != nullptr && (!by_element || given->sizes() == parameter.sizes()), key,
            by_element ? "a tensor of shape " + c10::str(parameter.sizes()) : "a tensor");
      check_dtype(*given, key);
      value = own_copy(*given, parameter);
    } else {
      check(!is_there(key), key, "a tensor");
    }
    lua_pop(lua, 1);
  }
  void operator()(const char* key, std::deque<at::Tensor>& value) const {
    if (field(key)) {
      value.clear();
      for (const at::Tensor& one : check_tensor_list(lua, -1)) {
        check_dtype(one, key);
        value.push_back(own_copy(one, parameter));
      }
    }
    lua_pop(lua, 1);
  }

 private:
  bool field(const char* key) const {
    lua_getfield(lua, index, key);
    return !is_nil(lua, -1);
  }
  /// A step could not write to another kind of numbers. (LBFGS, whose tensors are not of the parameter's shape, holds
  /// complex numbers as pairs.)
  void check_dtype(const at::Tensor& given, const char* key) const {
    const bool complex = parameter.is_complex() && by_element;
    check(!at::isIntegralType(given.scalar_type(), true) && given.is_complex() == complex, key,
          std::string("a tensor of ") + (complex ? "complex" : "real") + " floating-point numbers");
  }
  /// About the value on top of the stack.
  void check(bool good, const char* key, const std::string& required) const {
    if (good) return;
    const at::Tensor* tensor = to_tensor(lua, -1);
    std::string have = describe(lua, -1);
    if (tensor && tensor->is_meta()) have.resize(have.size() - std::string(" meta").size());  // it is in a file
    TORCH_CHECK_VALUE(false, "load_state_dict: '", key, "' of parameter ", number, " is ", have, ", expected ",
                      required);
  }
};

// Kinds

bool is_number_list(lua_State* lua, int index) {
  if (!lua_istable(lua, index)) return lua_type(lua, index) == LUA_TNUMBER;
  index = lua_absindex(lua, index);
  const auto count = static_cast<lua_Integer>(lua_rawlen(lua, index));
  for (lua_Integer i = 1; i <= count; ++i) {
    const bool number = lua_rawgeti(lua, index, i) == LUA_TNUMBER;
    lua_pop(lua, 1);
    if (!number) return false;
  }
  return count > 0 && name_in_list(lua, index).empty();
}

void read_betas(const OptimizerKind& kind, lua_State* lua, const Options& options, Betas& value) {
  if (!options.has("betas")) return;
  options.push("betas");
  TORCH_CHECK_TYPE(is_number_list(lua, -1), kind.name, ": option 'betas' is ", describe(lua, -1),
                   ", expected 2 numbers");
  const std::vector<double> betas = check_number_list(lua, -1);
  lua_pop(lua, 1);
  TORCH_CHECK_VALUE(betas.size() == 2, kind.name, ": option 'betas' has ", betas.size(), " numbers, expected 2");
  for (const double beta : betas) {
    TORCH_CHECK_VALUE(beta >= 0 && beta < 1, kind.name, ": option 'betas' holds ", beta, ", expected 0 <= beta < 1");
  }
  value = {betas[0], betas[1]};
}

template <class OptimizerType, class OptionsType, class StateType>
OptimizerKind make_kind(const char* name, std::unique_ptr<optim::OptimizerOptions> (*defaults)()) {
  OptimizerKind kind{.name = name, .options = {}, .defaults = defaults};
  OptionsType sample = static_cast<const OptionsType&>(*defaults());
  visit_fields(sample, [&](const char* key, auto&) { kind.options.emplace_back(key); });
  kind.read_options = [](const OptimizerKind& self, lua_State* lua, const Options& options,
                         const optim::OptimizerOptions& base) {
    std::unique_ptr<optim::OptimizerOptions> result = base.clone();
    visit_fields(static_cast<OptionsType&>(*result), [&]<class T>(const char* key, T& value) {
      if constexpr (std::same_as<T, Betas>) {
        read_betas(self, lua, options, value);
      } else {
        read_field(self.name, options, key, value);
      }
    });
    return result;
  };
  kind.push_options = [](lua_State* lua, optim::OptimizerOptions& options) {
    lua_newtable(lua);
    visit_fields(static_cast<OptionsType&>(options), [&](const char* key, const auto& value) {
      push_field(lua, value);
      lua_setfield(lua, -2, key);
    });
  };
  kind.push_state = [](lua_State* lua, optim::OptimizerParamState& state) {
    lua_newtable(lua);
    visit_fields(static_cast<StateType&>(state), [&](const char* key, const auto& value) {
      push_field(lua, value);
      lua_setfield(lua, -2, key);
    });
  };
  kind.read_state = [](lua_State* lua, int index, int64_t number, const at::Tensor& parameter,
                       const optim::OptimizerOptions& options) {
    auto state = std::make_unique<StateType>();
    std::vector<std::string> known;
    visit_fields(*state, [&](const char* key, auto&) { known.emplace_back(key); });
    const Options refuses_others(lua, index, "load_state_dict", known);
    constexpr bool kByElement = !std::same_as<StateType, optim::LBFGSParamState>;
    const auto& given = static_cast<const OptionsType&>(options);
    visit_fields(*state, StateReader{lua, lua_absindex(lua, index), number, parameter, kByElement,
                                     [&](std::string_view key) { return is_there(given, key); }});
    return std::unique_ptr<optim::OptimizerParamState>(std::move(state));
  };
  kind.make = [](const std::vector<optim::OptimizerParamGroup>& groups, const optim::OptimizerOptions& options) {
    return std::unique_ptr<optim::Optimizer>(
        std::make_unique<OptimizerType>(groups, static_cast<const OptionsType&>(options)));
  };
  return kind;
}

template <class OptionsType>
std::unique_ptr<optim::OptimizerOptions> plain_defaults() {
  return std::make_unique<OptionsType>();
}

const std::vector<OptimizerKind>& kinds() {
  static const std::vector<OptimizerKind> all = {
      make_kind<optim::SGD, optim::SGDOptions, optim::SGDParamState>(
          "SGD", [] { return std::unique_ptr<optim::OptimizerOptions>(std::make_unique<optim::SGDOptions>(1e-3)); }),
      make_kind<optim::Adam, optim::AdamOptions, optim::AdamParamState>("Adam", plain_defaults<optim::AdamOptions>),
      make_kind<optim::AdamW, optim::AdamWOptions, optim::AdamWParamState>("AdamW",
                                                                           plain_defaults<optim::AdamWOptions>),
      make_kind<optim::RMSprop, optim::RMSpropOptions, optim::RMSpropParamState>("RMSprop",
                                                                                 plain_defaults<optim::RMSpropOptions>),
      make_kind<optim::Adagrad, optim::AdagradOptions, optim::AdagradParamState>("Adagrad",
                                                                                 plain_defaults<optim::AdagradOptions>),
      make_kind<optim::LBFGS, optim::LBFGSOptions, optim::LBFGSParamState>("LBFGS",
                                                                           plain_defaults<optim::LBFGSOptions>),
  };
  return all;
}

}  // namespace

const OptimizerKind& find_optimizer_kind(const std::string& name) {
  std::vector<std::string> names;
  for (const OptimizerKind& kind : kinds()) {
    if (name == kind.name) return kind;
    names.emplace_back(kind.name);
  }
  TORCH_CHECK_VALUE(false, "optim: no optimizer '", name, "'", did_you_mean(name, names));
}

}  // namespace moonhalo::scripting
