// SPDX-License-Identifier: Apache-2.0
// The node of mh.Function: results of a script's forward, whose derivative is a function of the script.
// lua/internal/own_function.lua has the rest.
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "moonhalo/engine/base/autograd_compat.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/held_values.h"

namespace moonhalo::scripting {
namespace {

using torch::autograd::Edge;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

class OwnFunctionNode final : public torch::autograd::Node {
 public:
  explicit OwnFunctionNode(std::string name) : name_(std::move(name)) {}

  std::string name() const override { return name_; }
  void release_variables() override { saved.clear(); }

  /// Calls backward(saved tensors, gradients of the results), which gives a gradient of each input, or nil.
  variable_list apply(variable_list&& grads) override {
    backward.push();
    lua_State* lua = backward.lua();
    const int before = lua_gettop(lua) - 1;
    variable_list unpacked;
    for (const SavedVariable& one : saved) unpacked.push_back(one.unpack(getptr()));
    push_list(lua, unpacked);
    variable_list of_results(results);
    for (size_t i = 0; i < places.size(); ++i) of_results[places[i]] = i < grads.size() ? grads[i] : at::Tensor();
    push_list(lua, of_results);
    call_traced(lua, 2, LUA_MULTRET);
    variable_list found;
    for (int i = before + 1; i <= lua_gettop(lua); ++i) found.push_back(opt_tensor(lua, i));
    lua_settop(lua, before);
    found.resize(num_outputs());
    return found;
  }

  std::vector<SavedVariable> saved;
  HeldValue backward;
  size_t results = 0;          ///< of forward
  std::vector<size_t> places;  ///< of the results that have a derivative

 private:
  static void push_list(lua_State* lua, const variable_list& tensors) {
    lua_createtable(lua, static_cast<int>(tensors.size()), 0);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].defined()) continue;
      push(lua, tensors[i]);
      lua_rawseti(lua, -2, static_cast<lua_Integer>(i) + 1);
    }
  }

  std::string name_;
};

bool has_derivative(const at::Tensor& result) { return result.is_floating_point() || result.is_complex(); }

/// _own_function(name, inputs, results, saved, without, backward) -> results: tensors that depend on `inputs` by
/// `backward`. `without`: for each result whether it has no derivative.
int own_function(lua_State* lua) {
  const std::string name = check_string(lua, 1);
  const std::vector<at::Tensor> inputs = check_tensor_list(lua, 2), results = check_tensor_list(lua, 3),
                                saved = check_tensor_list(lua, 4);
  const std::vector<int64_t> without = check_int_list(lua, 5);
  const bool any = c10::GradMode::is_enabled() && torch::autograd::any_variable_requires_grad(inputs);
  luaL_checkstack(lua, static_cast<int>(results.size()) + 8, "Function: too many results");
  const NodePointer made = any ? make_node<OwnFunctionNode>(name) : NodePointer();
  auto* node = static_cast<OwnFunctionNode*>(made.get());
  std::vector<at::Tensor> given;
  std::vector<int> recorded;
  const int first = lua_gettop(lua) + 1;
  for (size_t i = 0; i < results.size(); ++i) {
    given.push_back(results[i].detach());
    if (node && has_derivative(given[i]) && std::find(without.begin(), without.end(), i + 1) == without.end()) {
      torch::autograd::impl::set_gradient_edge(given[i], Edge(made, node->add_input_metadata(given[i])));
      node->places.push_back(i);
      recorded.push_back(first + static_cast<int>(i));
    }
    push(lua, given[i]);
  }
  if (recorded.empty()) return static_cast<int>(results.size());
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  node->results = results.size();
  for (const at::Tensor& one : saved) {
    // A result among them is saved as what it is now, without the cycle of a node that holds its own result.
    const auto at =
        std::find_if(results.begin(), results.end(), [&](const at::Tensor& result) { return result.is_same(one); });
    const at::Tensor& kept = at == results.end() ? one : given[static_cast<size_t>(at - results.begin())];
    node->saved.emplace_back(kept, at != results.end() && kept.grad_fn() == made);
  }
  node->backward = HeldValue(lua, recorded, 6);
  return static_cast<int>(results.size());
}

const luaL_Reg kOwnFunctions[] = {{"_own_function", guard<own_function>}, {nullptr, nullptr}};

const Binding own_function_binding{"own_function", [](lua_State* lua) { add_functions(lua, kOwnFunctions); }};

}  // namespace
}  // namespace moonhalo::scripting
