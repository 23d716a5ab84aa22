// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/operators/schema_call.h"

#include <ATen/ATen.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/deferred/deferred.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/scripting/bind/mesh.h"
#include "moonhalo/scripting/bind/training.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/devices.h"
#include "moonhalo/scripting/core/methods.h"
#include "moonhalo/scripting/operators/schema_convert.h"

namespace moonhalo::scripting {

namespace {

using c10::Argument;
using c10::FunctionSchema;
using c10::TypeKind;

const c10::Type& without_optional(const c10::Type& type) {
  return type.kind() == TypeKind::OptionalType ? *type.containedType(0) : type;
}

bool is_kind(const Argument& argument, TypeKind kind) { return without_optional(*argument.type()).kind() == kind; }

bool is_int_list(const Argument& argument) {
  const c10::Type& type = without_optional(*argument.type());
  return type.kind() == TypeKind::ListType && type.containedType(0)->kind() == TypeKind::IntType;
}

std::string type_text(const Argument& argument) {
  const c10::Type& real = without_optional(*argument.real_type());
  std::string text = real.str();
  if (real.kind() == TypeKind::ListType && argument.N()) {
    text = text.substr(0, text.size() - 1) + std::to_string(*argument.N()) + "]";
  }
  return argument.type()->kind() == TypeKind::OptionalType ? text + "?" : text;
}

/// PyTorch's Python functions know these words too.
std::string python_alias(const std::string& keyword) {
  if (keyword == "axis") return "dim";
  if (keyword == "keepdims") return "keepdim";
  if (keyword == "input") return "self";
  return keyword;
}

/// The trial of one overload.
class Trial {
 public:
  Trial(const LuaCall& call, const c10::OperatorHandle& op, bool drop_last)
      : call_(call), lua_(call.lua), schema_(op.schema()), values_(schema_.arguments().size(), 0) {
    chosen_.op = &op;
    positional_ = call.positional;
    if (drop_last) positional_.pop_back();
  }

  bool fits() { return bind_positional() && bind_keywords() && place() && has_required() && convert_all(); }
  ChosenOverload take() { return std::move(chosen_); }
  const std::string& why() const { return why_; }
  std::pair<int, int> rank() const { return {chosen_.cost, defaults_}; }

 private:
  const std::vector<Argument>& arguments() const { return schema_.arguments(); }

  bool fail(const std::string& why) {
    why_ = why;
    return false;
  }

  bool bind_positional();
  bool pack_rest(size_t from);
  bool bind_keywords();
  bool place();
  bool has_required();
  bool convert_all();
  bool fill_absent(size_t position);
  bool is_order(size_t position) const { return arguments()[position].name() == "p" && schema_.name() == "aten::norm"; }
  /// torch.norm(x, keepdim=True) is the norm over all dims.
  bool is_all_dims(size_t position) const {
    if (schema_.name() != "aten::norm" || !is_int_list(arguments()[position]) || values_[0] == 0) return false;
    const auto keepdim = schema_.argumentIndexWithName("keepdim");
    return keepdim && values_[*keepdim] != 0;
  }
  /// x.sum(dim=None, keepdim=True), where a table of Lua cannot have dim = nil.
  bool is_no_dim(size_t position) const {
    const auto keepdim = schema_.argumentIndexWithName("keepdim");
    return arguments()[position].name() == "dim" && arguments()[position].type()->kind() == TypeKind::OptionalType &&
           keepdim && values_[*keepdim] != 0;
  }
  bool is_frobenius(size_t position) const {
    return lua_type(lua_, values_[position]) == LUA_TSTRING && is_order(position) &&
           std::string_view(lua_tostring(lua_, values_[position])) == "fro";
  }
  /// "; did you mean 'float32'?" for a misspelt dtype or device.
  std::string word_hint(const Argument& argument, int index) const;
  bool has_tensor() const;
  bool has_shard_tensor() const;
  bool is_factory() const { return schema_.argumentIndexWithName("pin_memory").has_value(); }

  const LuaCall& call_;
  lua_State* lua_;
  const FunctionSchema& schema_;
  std::vector<int> positional_;
  std::vector<int> values_;  // per schema argument: stack index, 0 when absent
  ChosenOverload chosen_;
  int defaults_ = 0;
  std::string why_;
};

bool Trial::bind_positional() {
  size_t next = 0;
  size_t given = 0;
  if (call_.method && !positional_.empty()) {
    const auto self = schema_.argumentIndexWithName("self");
    const size_t position = self && !arguments()[*self].kwarg_only() ? *self : 0;
    if (position >= values_.size()) return fail("takes no tensor");
    values_[position] = positional_[0];
    given = 1;
  }
  for (; given < positional_.size(); ++given) {
    while (next < values_.size() && values_[next] != 0) ++next;
    if (next >= values_.size() || arguments()[next].kwarg_only()) return pack_rest(given);
    values_[next] = positional_[given];
  }
  return true;
}

/// x:view(2, 3) for x:view({2, 3}), mh.einsum(equation, a, b): more arguments than parameters are
/// the last list's.
bool Trial::pack_rest(size_t from) {
  size_t last = 0;
  while (last < values_.size() && !arguments()[last].kwarg_only()) ++last;
  if (last-- == 0) return fail("takes no positional arguments");
  const Argument& parameter = arguments()[last];
  const bool ints = parameter.type()->kind() == TypeKind::ListType && !parameter.N() &&
                    parameter.type()->containedType(0)->kind() != TypeKind::TensorType;
  const bool tensors = parameter.type()->kind() == TypeKind::ListType &&
                       parameter.type()->containedType(0)->kind() == TypeKind::TensorType;
  if ((!ints && !tensors) || from == 0) return fail("has fewer parameters");
  const auto first = std::find(positional_.begin(), positional_.end(), values_[last]);
  luaL_checkstack(lua_, 4, "too many arguments");
  lua_newtable(lua_);
  lua_Integer count = 0;
  for (auto it = first; it != positional_.end(); ++it) {
    const bool right = tensors ? to_tensor(lua_, *it) != nullptr : to_int(lua_, *it).has_value();
    if (!right) return fail("has fewer parameters");
    lua_pushvalue(lua_, *it);
    lua_rawseti(lua_, -2, ++count);
  }
  values_[last] = lua_gettop(lua_);
  chosen_.cost += 1;
  return true;
}

bool Trial::bind_keywords() {
  for (const auto& [keyword, index] : call_.keywords) {
    auto position = schema_.argumentIndexWithName(keyword);
    if (!position) position = schema_.argumentIndexWithName(python_alias(keyword));
    if (!position && keyword == "requires_grad" && is_factory()) {
      if (!lua_isboolean(lua_, index)) return fail("argument 'requires_grad' needs bool");
      chosen_.requires_grad = lua_toboolean(lua_, index);
      continue;
    }
    if (!position && keyword == "mesh" && is_factory() && !has_tensor()) {
      chosen_.mesh = to_object<DeviceMesh>(lua_, index);
      if (!chosen_.mesh) return fail("argument 'mesh' needs DeviceMesh");
      continue;
    }
    if (!position && keyword == "placements" && is_factory() && !has_tensor()) {
      chosen_.placements = check_placements(lua_, index);
      continue;
    }
    if (!position) {
      std::vector<std::string> names;
      for (const Argument& argument : arguments()) names.push_back(argument.name());
      if (schema_.argumentIndexWithName("dim")) names.emplace_back("axis");
      return fail("has no argument '" + keyword + "'" + did_you_mean(keyword, names));
    }
    if (values_[*position] != 0) return fail("argument '" + keyword + "' is given twice");
    values_[*position] = index;
  }
  return true;
}

/// PyTorch's factories of DTensors replicate what they are given no placements for.
bool Trial::place() {
  if (chosen_.mesh && chosen_.placements.empty()) {
    chosen_.placements.assign(chosen_.mesh->ndim(), replicate());
  }
  return chosen_.mesh || chosen_.placements.empty() || fail("'placements' needs a 'mesh' too");
}

bool Trial::has_tensor() const {
  return std::any_of(values_.begin(), values_.end(), [this](int index) { return index && to_tensor(lua_, index); });
}

bool Trial::has_shard_tensor() const {
  return std::any_of(chosen_.stack.begin(), chosen_.stack.end(), [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && is_shard_tensor(value.toTensor());
  });
}

/// The Frobenius norm is the 2-norm of all elements along the dims, as torch.norm computes it.
Cost from_order(c10::IValue& out) {
  out = at::Scalar(2);
  return 0;
}

/// Most overloads fall here, before anything is converted.
bool Trial::has_required() {
  for (size_t i = 0; i < values_.size(); ++i) {
    const Argument& argument = arguments()[i];
    if (values_[i] == 0 && !argument.default_value() && !is_kind(argument, TypeKind::GeneratorType) && !is_order(i) &&
        !is_all_dims(i) && !is_no_dim(i)) {
      return fail("argument '" + argument.name() + "' is missing");
    }
  }
  return true;
}

bool Trial::convert_all() {
  const bool numbers_as_tensors = has_tensor();
  chosen_.stack.resize(values_.size());
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i] == 0) continue;
    const Argument& argument = arguments()[i];
    if (is_nil(lua_, values_[i]) && argument.type()->kind() != TypeKind::OptionalType) {
      values_[i] = 0;
      continue;
    }
    const Cost cost = is_frobenius(i) ? from_order(chosen_.stack[i])
                                      : from_lua(lua_, values_[i], argument, numbers_as_tensors, chosen_.stack[i]);
    if (!cost) {
      return fail("argument '" + argument.name() + "' needs " + type_text(argument) + ", got " +
                  describe(lua_, values_[i]) + word_hint(argument, values_[i]));
    }
    chosen_.cost += *cost;
  }
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i] == 0 && !fill_absent(i)) return false;
  }
  return true;
}

std::string Trial::word_hint(const Argument& argument, int index) const {
  if (lua_type(lua_, index) != LUA_TSTRING) return "";
  const TypeKind kind = without_optional(*argument.real_type()).kind();
  if (kind == TypeKind::ScalarTypeType) return did_you_mean(lua_tostring(lua_, index), dtype_names());
  if (kind == TypeKind::DeviceObjType)
    return did_you_mean(lua_tostring(lua_, index), {"cpu", "cuda", "meta"}, {{"gpu", "cuda"}});
  return "";
}

bool Trial::fill_absent(size_t position) {
  const Argument& argument = arguments()[position];
  // ShardTensors draw from the engine's counter generator, which has the global position of every element.
  if (is_kind(argument, TypeKind::GeneratorType) && !has_shard_tensor()) {
    // One of the host for tensors of any device: their numbers depend on its seed alone.
    chosen_.stack[position] = default_generator();
    if (!argument.default_value()) chosen_.cost -= 1;
    return true;
  }
  if (is_order(position) && !argument.default_value()) {
    ++defaults_;
    return true;  // None is 2, as torch.norm(x, dim=1) has it
  }
  if (is_all_dims(position)) {
    std::vector<int64_t> dims(chosen_.stack[0].toTensor().dim());
    std::iota(dims.begin(), dims.end(), 0);
    chosen_.stack[position] = dims;
    ++defaults_;
    return true;
  }
  if (!argument.default_value()) {
    ++defaults_;
    return is_no_dim(position) || fail("argument '" + argument.name() + "' is missing");
  }
  chosen_.stack[position] = *argument.default_value();
  if (argument.name() == "device" && is_factory() && !has_tensor()) {
    const c10::Device required = context(lua_).device;
    if (!required.is_cpu()) chosen_.stack[position] = required;
  }
  ++defaults_;
  return true;
}

/// The first hole of a list: {1, nil, 3} after a slip in a variable's name.
std::string hole_hint(const LuaCall& call) {
  for (const int index : call.positional) {
    const auto count = lua_istable(call.lua, index) ? static_cast<lua_Integer>(lua_rawlen(call.lua, index)) : 0;
    for (lua_Integer i = 1; i <= count; ++i) {
      const bool hole = lua_rawgeti(call.lua, index, i) == LUA_TNIL;
      lua_pop(call.lua, 1);
      if (hole)
        return "\n  fix   element " + std::to_string(i) + " of the list is nil: look at the variable that stands there";
    }
  }
  return "";
}

/// x:sum(0, 2) for x:sum({0, 2}).
std::string list_hint(const OperatorSet& set, const LuaCall& call) {
  size_t first = 0;
  while (first < call.positional.size() && !to_int(call.lua, call.positional[first])) ++first;
  size_t last = first;
  while (last < call.positional.size() && to_int(call.lua, call.positional[last])) ++last;
  if (last - first < 2) return "";
  const bool takes_list = std::any_of(set.overloads.begin(), set.overloads.end(), [&](const c10::OperatorHandle& op) {
    const auto& arguments = op.schema().arguments();
    if (first >= arguments.size() || without_optional(*arguments[first].type()).kind() != TypeKind::ListType)
      return false;
    return without_optional(*arguments[first].type()).containedType(0)->kind() == TypeKind::IntType;
  });
  if (!takes_list) return "";
  std::string numbers;
  for (size_t i = first; i < last; ++i) {
    numbers += (i > first ? ", " : "") + std::to_string(*to_int(call.lua, call.positional[i]));
  }
  return "\n  fix   give several numbers as a list: {" + numbers + "}";
}

/// hash_tensor(x, {}, true) for hash_tensor(x, {}, {keepdim = true}): arguments that a call gives by name alone.
std::string by_name_hint(const OperatorSet& set, const LuaCall& call) {
  if (!call.keywords.empty()) return "";
  for (const c10::OperatorHandle& op : set.overloads) {
    const auto& arguments = op.schema().arguments();
    const auto named =
        std::find_if(arguments.begin(), arguments.end(), [](const Argument& one) { return one.kwarg_only(); });
    const auto before = static_cast<size_t>(named - arguments.begin());
    if (call.positional.size() <= before || call.positional.size() > arguments.size()) continue;
    std::string options;
    bool fits = true;
    for (size_t i = 0; i < call.positional.size() && fits; ++i) {
      c10::IValue value;
      fits = from_lua(call.lua, call.positional[i], arguments[i], true, value).has_value();
      if (i >= before)
        options += (options.empty() ? "" : ", ") + arguments[i].name() + " = " + describe(call.lua, call.positional[i]);
    }
    if (fits) return "\n  fix   options are given by name: {" + options + "}";
  }
  return "";
}

/// x:norm("nuc"): torch.norm takes names, of which "fro" is a norm of elements.
void refuse_norm(const OperatorSet& set, const LuaCall& call) {
  if (set.name != "norm") return;
  const auto refuse_name = [&](int index) {
    TORCH_CHECK_VALUE(
        lua_type(call.lua, index) != LUA_TSTRING || std::string_view(lua_tostring(call.lua, index)) == "fro",
        "norm: unknown order ", describe(call.lua, index), "\n  have  a number, \"fro\", math.huge, -math.huge",
        "\n  fix   choose one of them, or mh.linalg_matrix_norm(x, \"nuc\")");
  };
  if (call.positional.size() > 1) refuse_name(call.positional[1]);
  for (const auto& [keyword, index] : call.keywords) {
    if (keyword == "p") refuse_name(index);
  }
}

[[noreturn]] void refuse(const OperatorSet& set, const LuaCall& call) {
  refuse_norm(set, call);
  std::ostringstream text;
  text << set.name << ": no overload fits the arguments\n  have  " << describe_call(set.name, call);
  for (const c10::OperatorHandle& op : set.overloads) {
    const bool out = op.schema().overload_name().ends_with("out");
    const bool asked_out = std::any_of(call.keywords.begin(), call.keywords.end(),
                                       [](const auto& keyword) { return keyword.first == "out"; });
    if (out && !asked_out) continue;
    Trial trial(call, op, false);
    trial.fits();
    text << "\n  takes " << op.schema() << "\n        " << trial.why();
  }
  const std::string hole = hole_hint(call);
  const std::string by_name = by_name_hint(set, call), remedy = by_name.empty() ? list_hint(set, call) : by_name;
  TORCH_CHECK_TYPE(false, text.str(), hole.empty() ? remedy : hole);
}

/// The Lua argument that `result` is (an in-place operator returns its argument), or 0.
int argument_of(const LuaCall& call, const at::Tensor& result) {
  for (const int index : call.positional) {
    const at::Tensor* tensor = to_tensor(call.lua, index);
    if (tensor && tensor->is_same(result)) return index;
  }
  return 0;
}

}  // namespace

LuaCall read_call(lua_State* lua, bool method) {
  LuaCall call{.lua = lua, .method = method, .positional = {}, .keywords = {}};
  int count = lua_gettop(lua);
  if (count > 0 && lua_istable(lua, count)) {
    const int table = count;
    bool names = false, numbers = false;
    for (lua_pushnil(lua); lua_next(lua, table); lua_pop(lua, 1)) {
      (lua_type(lua, -2) == LUA_TSTRING ? names : numbers) = true;
    }
    TORCH_CHECK_TYPE(!(names && numbers), "a table of arguments mixes a list and options: ", describe(lua, table),
                     "\n  fix   give the list as its own argument before the options");
    if (names) {
      --count;
      luaL_checkstack(lua, 64, "too many keyword arguments");
      for (lua_pushnil(lua); lua_next(lua, table);) {
        const int value = lua_gettop(lua);
        call.keywords.emplace_back(lua_tostring(lua, -2), value);
        lua_pushvalue(lua, -2);  // the key stays above its value for the next step
      }
      std::sort(call.keywords.begin(), call.keywords.end());  // messages identically on all ranks
    } else {
      call.empty_table_last = !numbers;
    }
  }
  // Lua's order differs between ranks, and messages must not.
  std::sort(call.keywords.begin(), call.keywords.end());
  for (int i = 1; i <= count; ++i) call.positional.push_back(i);
  return call;
}

std::string describe_call(const std::string& name, const LuaCall& call) {
  std::string text = name + "(";
  for (size_t i = 0; i < call.positional.size(); ++i) {
    text += (i > 0 ? ", " : "") + describe(call.lua, call.positional[i]);
  }
  bool first = call.positional.empty();
  for (const auto& [keyword, index] : call.keywords) {
    text += (first ? "" : ", ") + keyword + " = " + describe(call.lua, index);
    first = false;
  }
  return text + ")";
}

ChosenOverload choose_overload(const OperatorSet& set, const LuaCall& call) {
  std::optional<ChosenOverload> best;
  std::pair<int, int> best_rank;
  for (const bool drop_last : {false, true}) {
    if (drop_last && !call.empty_table_last) break;
    for (const c10::OperatorHandle& op : set.overloads) {
      Trial trial(call, op, drop_last);
      if (!trial.fits()) continue;
      const std::pair<int, int> rank = trial.rank();
      if (!best || rank < best_rank) {
        best = trial.take();
        best_rank = rank;
      }
    }
    if (best) return std::move(*best);
  }
  refuse(set, call);
}

int call_operator(lua_State* lua, const OperatorSet& set, bool method) {
  const LuaCall call = read_call(lua, method);
  if (method && (call.positional.empty() || !to_tensor(lua, 1)))
    TORCH_CHECK_TYPE(false, dot_call(lua, set.name, "Tensor"));
  ChosenOverload chosen = choose_overload(set, call);
  for (const c10::IValue& value : chosen.stack)
    if (value.isDevice()) present(value.toDevice());
  const FunctionSchema& schema = chosen.op->schema();
  try {
    const ElementwiseRandom random;
    if (chosen.mesh) {
      chosen.stack = {make_on_mesh(chosen.mesh, chosen.placements, [&] {
        chosen.op->callBoxed(chosen.stack);
        return chosen.stack[0].toTensor();
      })};
    } else {
      chosen.op->callBoxed(chosen.stack);
    }
  } catch (const c10::Error& error) {
    std::string message = error.what_without_backtrace();
    if (message.find(set.name) == std::string::npos) message = set.name + ": " + message;
    throw std::runtime_error(message + "\n  call  " + describe_call(set.name, call));
  }
  luaL_checkstack(lua, static_cast<int>(chosen.stack.size()) + 4, "too many results");
  for (size_t i = 0; i < chosen.stack.size(); ++i) {
    const c10::IValue& value = chosen.stack[i];
    if (value.isTensor()) {
      if (chosen.requires_grad) value.toTensor().set_requires_grad(true);
      if (const int same = argument_of(call, value.toTensor())) {
        forget_trained_values(value.toTensor());  // by requires_grad_
        lua_pushvalue(lua, same);
        continue;
      }
    }
    push_value(lua, value, *schema.returns().at(i).real_type());
  }
  return static_cast<int>(chosen.stack.size());
}

}  // namespace moonhalo::scripting
