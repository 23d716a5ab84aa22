// SPDX-License-Identifier: Apache-2.0
// x:register_post_accumulate_grad_hook: functions that are called when backward has added to a leaf's grad.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/held_values.h"

namespace moonhalo::scripting {

namespace {

/// LibTorch keeps one hook of a leaf; this calls several, in the order of their registration.
struct AccumulatedHooks : torch::autograd::PostAccumulateGradHook {
  void operator()(const at::Tensor& leaf) override {
    const auto now = functions;  // a function may remove itself
    for (const auto& [number, function] : now) {
      function.push();
      lua_State* lua = function.lua();
      push(lua, leaf);
      call_traced(lua, 1, 0);
    }
  }

  std::vector<std::pair<int64_t, HeldValue>> functions;
  int64_t next = 0;
};

AccumulatedHooks* hooks_of(const at::Tensor& leaf) {
  return dynamic_cast<AccumulatedHooks*>(accumulated_hook(leaf).get());
}

/// Upvalues: the tensor, the hook's number.
int remove_accumulated_hook(lua_State* lua) {
  const at::Tensor& leaf = check_tensor(lua, lua_upvalueindex(1));
  AccumulatedHooks* hooks = hooks_of(leaf);
  if (hooks == nullptr) return 0;
  const int64_t number = lua_tointeger(lua, lua_upvalueindex(2));
  std::erase_if(hooks->functions, [number](const auto& one) { return one.first == number; });
  if (hooks->functions.empty()) accumulated_hook(leaf) = nullptr;
  return 0;
}

/// x:register_post_accumulate_grad_hook(fn) -> table
///   Calls fn(x) during backward each time x.grad, of a leaf, has been added to. The function may use x.grad and set it
///   to nil, so that the memory of gradients is free before the next one is made. Where gradients are reduced during
///   backward (mh.fully_shard), the calls come at its end, when those of parameters in blocks are reduced.
///   fn          function    fn(x); what it returns is not used
///   returns     table       {remove}: remove() takes the hook away
///   collective  no
///   errors      ValueError: x is not a leaf that requires a gradient, or C++ has set a hook of its own
///   example
///     local x = mh.ones({2}, {requires_grad = true})
///     x:register_post_accumulate_grad_hook(function(leaf) print(leaf.grad:sum():item()) end)
///     (x * 3):sum():backward()    --> 6.0
int register_accumulated_hook(lua_State* lua) {
  const at::Tensor& leaf = check_tensor(lua, 1);
  if (!is_callable(lua, 2)) argument_error(lua, 2, "a function");
  TORCH_CHECK_VALUE(leaf.requires_grad() && leaf.is_leaf(),
                    "register_post_accumulate_grad_hook: the tensor is not a leaf that requires a gradient\n  have  ",
                    describe(leaf), "\n  fix   x:register_hook(fn) for results");
  AccumulatedHooks* hooks = hooks_of(leaf);
  if (hooks == nullptr) {
    TORCH_CHECK_VALUE(accumulated_hook(leaf) == nullptr,
                      "register_post_accumulate_grad_hook: C++ has set a hook of its own, and LibTorch keeps one of a "
                      "leaf\n  have  ",
                      describe(leaf), "\n  fix   use x.grad behind backward, or x:register_hook(fn)");
    auto made = std::make_unique<AccumulatedHooks>();
    hooks = made.get();
    accumulated_hook(leaf) = std::move(made);
  }
  const int64_t number = hooks->next++;
  hooks->functions.emplace_back(number, HeldValue(lua, {1}, 2));
  lua_createtable(lua, 0, 1);
  lua_pushvalue(lua, 1);
  push(lua, number);
  lua_pushcclosure(lua, guard<remove_accumulated_hook>, 2);
  lua_setfield(lua, -2, "remove");
  return 1;
}

const luaL_Reg kAccumulatedHookMethods[] = {{"register_post_accumulate_grad_hook", guard<register_accumulated_hook>},
                                            {nullptr, nullptr}};

const Binding accumulated_hook_binding{"accumulated_hook",
                                       [](lua_State* lua) { add_tensor_methods(lua, kAccumulatedHookMethods); }};

}  // namespace

}  // namespace moonhalo::scripting
