// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/operators/schema_call.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting::test_schema_call {
namespace {

using ::testing::HasSubstr;

/// A state in which `chosen(name, ...)` gives the overload that a call would use.
class SchemaCall : public ::testing::Test {
 protected:
  SchemaCall() : state_(new_state()) {
    push_module(lua());
    lua_setglobal(lua(), "mh");
    lua_register(lua(), "chosen", guard<chosen>);
  }

  lua_State* lua() { return state_.get(); }

  std::string run(const std::string& code) {
    lua_settop(lua(), 0);
    if (luaL_loadstring(lua(), code.c_str()) != LUA_OK) return lua_tostring(lua(), -1);
    try {
      call_traced(lua(), 0, 1);
    } catch (const LuaError& error) {
      return error.what();
    }
    return luaL_tolstring(lua(), -1, nullptr);
  }

 private:
  static int chosen(lua_State* lua) {
    const OperatorSet* set = find_operator(check_string(lua, 1));
    const bool method = check_bool(lua, 2);
    lua_remove(lua, 1);
    lua_remove(lua, 1);
    const ChosenOverload overload = choose_overload(*set, read_call(lua, method));
    push(lua, "'" + overload.op->operator_name().overload_name + "'");
    return 1;
  }

  std::unique_ptr<lua_State, void (*)(lua_State*)> state_;
};

struct Choice {
  const char* call;
  const char* overload;
};

TEST_F(SchemaCall, ChoosesTheOverloadThatFitsBest) {
  const Choice choices[] = {
      {"chosen('add', false, x, x)", "'Tensor'"},
      {"chosen('add', false, x, 1)", "'Scalar'"},
      {"chosen('add', false, 1, x)", "'Tensor'"},
      {"chosen('sum', true, x)", "''"},
      {"chosen('sum', true, x, 0)", "'dim_IntList'"},
      {"chosen('sum', true, x, {0, 1}, true)", "'dim_IntList'"},
      {"chosen('sum', true, x, {dtype = 'float64'})", "''"},
      {"chosen('max', true, x)", "''"},
      {"chosen('max', true, x, 1)", "'dim'"},
      {"chosen('max', true, x, 1.0)", "'dim'"},
      {"chosen('max', true, x, x)", "'other'"},
      {"chosen('pow', false, x, 2)", "'Tensor_Scalar'"},
      {"chosen('pow', false, 2, x)", "'Scalar'"},
      {"chosen('pow', false, x, x)", "'Tensor_Tensor'"},
      {"chosen('clamp', true, x, 0, 1)", "''"},
      {"chosen('clamp', true, x, x)", "'Tensor'"},
      {"chosen('where', false, c, x, x)", "'self'"},
      {"chosen('where', true, x, c, 0)", "'ScalarOther'"},
      {"chosen('where', true, c)", "''"},
      {"chosen('squeeze', true, x)", "''"},
      {"chosen('squeeze', true, x, 0)", "'dim'"},
      {"chosen('squeeze', true, x, {0, 1})", "'dims'"},
      {"chosen('split', true, x, 2)", "'Tensor'"},
      {"chosen('split', true, x, {1, 1})", "'sizes'"},
      {"chosen('view', true, x, 6)", "''"},
      {"chosen('view', true, x, 3, 2)", "''"},
      {"chosen('view', true, x, 'int32')", "'dtype'"},
      {"chosen('repeat_interleave', true, x, 2)", "'self_int'"},
      {"chosen('arange', false, 3)", "''"},
      {"chosen('arange', false, 0, 3)", "'start'"},
      {"chosen('arange', false, 0, 3, 1)", "'start_step'"},
      {"chosen('rand', false, {2})", "'generator'"},
      {"chosen('normal', false, 0.0, 1.0, {2})", "'float_float'"},
      {"chosen('conv2d', false, w, w, nil, {padding = 'same'})", "'padding'"},
      {"chosen('conv2d', false, w, w, nil, {padding = 1})", "''"},
      {"chosen('add', false, x, x, {out = x})", "'out'"},
      {"chosen('div', false, x, x, {rounding_mode = 'floor'})", "'Tensor_mode'"},
      {"chosen('std', true, x, {correction = 0})", "'correction'"},
      {"chosen('to', true, x, {dtype = 'float64', copy = true})", "'dtype'"},
      {"chosen('to', true, x, {device = 'cpu'})", "'dtype_layout'"},
      {"chosen('index_fill', true, x, 0, i, 1.5)", "'int_Scalar'"},
      {"chosen('tensor_split', true, x, 2)", "'sections'"},
      {"chosen('tensor_split', true, x, {1})", "'indices'"},
  };
  for (const Choice& choice : choices) {
    const std::string code = std::string(
                                 "local x, c, w, i = mh.ones(2, 3), mh.ones(2, 3):bool(), mh.ones(1, 1, 3, 3), "
                                 "mh.tensor{0}; return ") +
                             choice.call;

    EXPECT_EQ(run(code), choice.overload) << choice.call;
  }
}

TEST_F(SchemaCall, NamesWhatItWasGivenAndWhatItTakes) {
  const std::string message = run("return mh.addmm(mh.ones(2), 'b', nil, {bta = 1})");

  EXPECT_THAT(message, HasSubstr(":1: addmm: no overload fits the arguments"));
  EXPECT_THAT(message, HasSubstr("have  addmm(Tensor float32 [2], 'b', nil, bta = 1)"));
  EXPECT_THAT(message, HasSubstr("takes aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1"));
  EXPECT_THAT(message, HasSubstr("has no argument 'bta'; did you mean 'beta'?"));
}

/// X10: every operator of the dispatcher can be reached by name and has a schema to check arguments
/// against; those with argument types that Lua has no value for are counted.
TEST_F(SchemaCall, ReachesEveryOperatorOfTheDispatcher) {
  int names = 0, overloads = 0, without_schema = 0, unusual = 0;
  std::set<std::string> unusual_types;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op) {
      ++without_schema;
      continue;
    }
    ++overloads;
    for (const c10::Argument& argument : op->schema().arguments()) {
      const c10::Type* type = argument.type().get();
      while (type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::ListType) {
        type = type->containedType(0).get();
      }
      switch (type->kind()) {
        case c10::TypeKind::TensorType:
        case c10::TypeKind::NumberType:
        case c10::TypeKind::IntType:
        case c10::TypeKind::SymIntType:
        case c10::TypeKind::FloatType:
        case c10::TypeKind::BoolType:
        case c10::TypeKind::StringType:
        case c10::TypeKind::DeviceObjType:
        case c10::TypeKind::GeneratorType:
          continue;
        default:
          break;
      }
      ++unusual;
      unusual_types.insert(type->str());
      break;
    }
  }
  for (const std::string& name : operator_names()) {
    const OperatorSet* set = find_operator(name);
    ASSERT_NE(set, nullptr) << name;
    EXPECT_FALSE(set->overloads.empty()) << name;
    lua_settop(lua(), 0);
    EXPECT_TRUE(push_operator(lua(), name, false)) << name;
    ++names;
  }

  std::string types;
  for (const std::string& type : unusual_types) types += " " + type;
  std::printf(
      "%d operator names, %d overloads with a schema, %d names without one, %d overloads with "
      "types not in Lua:%s\n",
      names, overloads, without_schema, unusual, types.c_str());
  EXPECT_GE(names, 1500);
  EXPECT_GE(overloads, 3000);
  EXPECT_LE(unusual, 20);
}

TEST_F(SchemaCall, FindsOperatorsOfOtherNamespaces) {
  EXPECT_EQ(run("return mh['aten::neg'](mh.tensor(3)):item()"), "-3");
  EXPECT_EQ(run("return mh['quantized::add'] ~= nil"), "true");
  EXPECT_THAT(run("return mh['nowhere::neg']"), HasSubstr("no function or operator 'nowhere::neg'"));
}

}  // namespace
}  // namespace moonhalo::scripting::test_schema_call
