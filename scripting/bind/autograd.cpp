// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "moonhalo/engine/base/backward_on_this_thread.h"
#include "moonhalo/engine/profile/recorder.h"
#include "moonhalo/scripting/bind/nan_watch.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/held_values.h"
#include "moonhalo/scripting/core/lua_random.h"

namespace moonhalo::scripting {

namespace {

std::vector<at::Tensor> tensors_of(const Options& options, lua_State* lua, const char* key) {
  if (!options.has(key)) return {};
  options.push(key);
  std::vector<at::Tensor> tensors = check_tensor_list(lua, -1);
  lua_pop(lua, 1);
  return tensors;
}

/// LibTorch's errors of `run`, with the name of what was called.
template <class Run>
void naming(const char* op, Run run) {
  const BackwardWarnings warnings;
  try {
    run();
  } catch (const c10::Error& error) {
    throw std::runtime_error(op + (": " + plain_message(error)) + place_of_backward(error.what_without_backtrace()));
  } catch (const std::runtime_error& error) {
    const std::string place = place_of_backward(error.what());
    if (place.empty()) throw;
    throw std::runtime_error(op + (": " + plain_message(error)) + place);
  }
}

/// Refuses what LibTorch refuses without a remedy.
void check_differentiable(const char* op, const at::Tensor& tensor, bool has_gradient) {
  TORCH_CHECK_VALUE(tensor.requires_grad(), op,
                    ": the tensor was not computed from anything that requires a gradient\n  have  ", describe(tensor),
                    "\n  fix   ask for gradients first, {requires_grad = true} or nn.Parameter, and compute "
                    "outside of mh.no_grad");
  TORCH_CHECK_VALUE(has_gradient || tensor.numel() == 1, op, ": a tensor of ", tensor.numel(),
                    " elements needs the gradient of each\n  have  ", describe(tensor),
                    "\n  fix   reduce it first, x:sum():backward(), or give a gradient of its shape, x:backward(g)");
}

/// x:backward(gradient = nil, {retain_graph = nil, create_graph = false, inputs = nil}) -> nothing
///   Adds the derivatives of x to the grad of every leaf from which x was computed and that requires a gradient. The
///   gradient of a leaf that is a ShardTensor has the leaf's placements.
///   gradient    Tensor?     of the shape of x; not needed for one element
///   retain_graph   boolean?   keeps what is needed for another backward; nil means create_graph
///   create_graph   boolean   records the derivatives, for derivatives of derivatives
///   inputs      {Tensor}?   adds to the grad of these tensors alone
///   returns     nothing
///   collective  over the meshes of the tensors between x and the leaves
///   errors      ValueError: nothing that requires a gradient was used, or x has several elements and no gradient is
///     given
///   example
///     local x = mh.tensor({1.0, 2.0}, {requires_grad = true})
///     local y = (x * x):sum()
///     y:backward()
///     x.grad:tolist()    --> {2.0, 4.0}
int backward(lua_State* lua) {
  const at::Tensor& tensor = check_tensor(lua, 1);
  at::Tensor gradient;
  int last = 2;
  if (to_tensor(lua, 2) || (is_nil(lua, 2) && lua_gettop(lua) > 2)) gradient = opt_tensor(lua, last++);
  const Options options(lua, last, "backward", {"gradient", "retain_graph", "create_graph", "inputs"});
  if (options.has("gradient")) gradient = options.get_tensor("gradient");
  const bool create_graph = options.get_bool("create_graph", false);
  const std::vector<at::Tensor> inputs = tensors_of(options, lua, "inputs");
  check_differentiable("backward", tensor, gradient.defined());
  const BackwardOnThisThread here;
  const RecordPart part("backward", Phase::kBackward);
  naming("backward", [&] {
    tensor.backward(gradient, options.get_bool("retain_graph", create_graph), create_graph,
                    inputs.empty() ? std::nullopt : std::optional<at::TensorList>(inputs));
  });
  return 0;
}

/// mh.grad(outputs, inputs, {grad_outputs = nil, retain_graph = nil, create_graph = false, allow_unused = false}) ->
///     Tensor
///   The derivatives of outputs with respect to inputs. Nothing is added to the grad of any tensor.
///   outputs     Tensor|{Tensor}   what is differentiated
///   inputs      Tensor|{Tensor}   with respect to these
///   grad_outputs   {Tensor}?   a gradient for each output; not needed for one element
///   retain_graph   boolean?   keeps what is needed for another backward; nil means create_graph
///   create_graph   boolean   records the derivatives, for derivatives of derivatives
///   allow_unused   boolean   nil for an input that was not used, instead of an error
///   returns     Tensor      one result for each input, not a list: local a, b = mh.grad(y, {u, v})
///   collective  over the meshes of the tensors between outputs and inputs
///   errors      ValueError: an output does not depend on anything that requires a gradient
///   example
///     local x = mh.tensor({3.0}, {requires_grad = true})
///     local first = mh.grad((x * x * x):sum(), x, {create_graph = true})
///     first:item(), mh.grad(first:sum(), x):item()    --> 27.0  18.0
int grad(lua_State* lua) {
  const std::vector<at::Tensor> outputs = check_tensor_list(lua, 1);
  const std::vector<at::Tensor> inputs = check_tensor_list(lua, 2);
  const Options options(lua, 3, "grad", {"grad_outputs", "retain_graph", "create_graph", "allow_unused"});
  const bool create_graph = options.get_bool("create_graph", false);
  const std::vector<at::Tensor> grad_outputs = tensors_of(options, lua, "grad_outputs");
  for (size_t i = 0; i < outputs.size(); ++i)
    check_differentiable("grad", outputs[i], i < grad_outputs.size() && grad_outputs[i].defined());
  const BackwardOnThisThread here;
  std::vector<at::Tensor> results;
  naming("grad", [&] {
    results = torch::autograd::grad(outputs, inputs, grad_outputs, options.get_bool("retain_graph", create_graph),
                                    create_graph, options.get_bool("allow_unused", false));
  });
  luaL_checkstack(lua, static_cast<int>(results.size()), "grad: too many inputs");
  for (const at::Tensor& result : results) push(lua, result);
  return static_cast<int>(results.size());
}

/// x:retain_grad() -> nothing
///   Lets backward also add up x.grad of a tensor that is not a leaf.
///   returns     nothing
///   collective  no
///   errors      the tensor does not require a gradient
///   example
///     local x = mh.ones({2}, {requires_grad = true})
///     local y = x * 2
///     y:retain_grad()
///     local z = (y * 5):sum()
///     z:backward()
///     y.grad:tolist()    --> {5.0, 5.0}
int retain_grad(lua_State* lua) {
  check_tensor(lua, 1).retain_grad();
  return 0;
}

/// A Lua error in a hook is sent through LibTorch as a C++ exception, not as Lua's own kind.
at::Tensor run_hook(const HeldValue& function, const at::Tensor& gradient) {
  function.push();
  lua_State* lua = function.lua();
  push(lua, gradient);
  call_traced(lua, 1, 1);
  if (!is_nil(lua, -1) && !to_tensor(lua, -1)) {
    const std::string got = describe(lua, -1);
    lua_pop(lua, 1);
    TORCH_CHECK_TYPE(false, "register_hook: the function gives a tensor or nil, got ", got);
  }
  const at::Tensor result = opt_tensor(lua, -1);
  lua_pop(lua, 1);
  return result;
}

/// Upvalues: the tensor, the hook's number.
int remove_hook(lua_State* lua) {
  check_tensor(lua, lua_upvalueindex(1)).remove_hook(static_cast<unsigned>(lua_tointeger(lua, lua_upvalueindex(2))));
  return 0;
}

/// x:register_hook(fn) -> table
///   Calls fn(gradient) during backward when the gradient of x is known. A tensor that fn returns takes its place.
///   fn          function    fn(gradient) -> Tensor?
///   returns     table       {remove}: remove() takes the hook away
///   collective  no
///   errors      ValueError: x does not require a gradient
///   example
///     local x = mh.ones({2}, {requires_grad = true})
///     x:register_hook(function(gradient) return gradient * 10 end)
///     x:sum():backward()
///     x.grad:tolist()    --> {10.0, 10.0}
int register_hook(lua_State* lua) {
  const at::Tensor& tensor = check_tensor(lua, 1);
  if (!is_callable(lua, 2)) argument_error(lua, 2, "a function");
  TORCH_CHECK_VALUE(tensor.requires_grad(),
                    "register_hook: the tensor requires no gradient, so none will come\n  have  ", describe(tensor),
                    "\n  fix   x:requires_grad_(), or a result that is computed from such a tensor");
  const HeldValue function(lua, {1}, 2);
  const unsigned number =
      tensor.register_hook([function](const at::Tensor& gradient) { return run_hook(function, gradient); });
  lua_createtable(lua, 0, 1);
  lua_pushvalue(lua, 1);
  push(lua, number);
  lua_pushcclosure(lua, guard<remove_hook>, 2);
  lua_setfield(lua, -2, "remove");
  return 1;
}

/// Calls the function at `index` with what follows it, while a `Guard` lives; returns its results.
template <class Guard, class... Arguments>
int call_under(lua_State* lua, int index, Arguments&&... arguments) {
  if (!is_callable(lua, index)) argument_error(lua, index, "a function");
  const Guard under(std::forward<Arguments>(arguments)...);
  lua_call(lua, lua_gettop(lua) - index, LUA_MULTRET);
  return lua_gettop(lua) - index + 1;
}

/// mh.no_grad(fn, ...) -> any
///   Runs fn(...) without recording gradients, and returns its results.
///   fn          function    what to run
///   returns     any         the results of fn
///   collective  no
///   example
///     local x = mh.ones({2}, {requires_grad = true})
///     mh.no_grad(function() return x * 2 end).requires_grad    --> false
int no_grad(lua_State* lua) { return call_under<at::AutoGradMode>(lua, 1, false); }
/// mh.enable_grad(fn, ...) -> any
///   Runs fn(...) with gradients recorded, also within mh.no_grad, and returns its results.
///   fn          function    what to run
///   returns     any         the results of fn
///   collective  no
///   example
///     local x = mh.ones({2}, {requires_grad = true})
///     mh.no_grad(function() return mh.enable_grad(function() return x * 2 end) end).requires_grad    --> true
int enable_grad(lua_State* lua) { return call_under<at::AutoGradMode>(lua, 1, true); }
/// mh.inference_mode(fn, ...) -> any
///   Runs fn(...) as mh.no_grad does, with less work for each operator. Tensors made within can never take part in
///   backward.
///   fn          function    what to run
///   returns     any         the results of fn
///   collective  no
///   example
///     mh.inference_mode(function() return mh.ones{2}:sum() end):item()    --> 2.0
int inference_mode(lua_State* lua) { return call_under<c10::InferenceMode>(lua, 1, true); }

/// mh.set_grad_enabled(enabled) -> nothing
///   Switches the recording of gradients on or off for what follows on this rank.
///   enabled     boolean     true at the start
///   returns     nothing
///   collective  no, but all ranks must choose the same
///   example
///     mh.set_grad_enabled(false)
///     mh.is_grad_enabled()    --> false
int set_grad_enabled(lua_State* lua) {
  at::GradMode::set_enabled(check_bool(lua, 1));
  return 0;
}
/// mh.is_grad_enabled() -> boolean
///   Whether operators record gradients.
///   returns     boolean     true at the start
///   collective  no
///   example
///     mh.is_grad_enabled(), mh.no_grad(mh.is_grad_enabled)    --> true  false
int is_grad_enabled(lua_State* lua) {
  push(lua, at::GradMode::is_enabled());
  return 1;
}

class Autocast {
 public:
  Autocast(c10::DeviceType device, at::ScalarType dtype, bool enabled, bool cache)
      : device_(device),
        enabled_(at::autocast::is_autocast_enabled(device)),
        dtype_(at::autocast::get_autocast_dtype(device)),
        cache_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, dtype);
    at::autocast::set_autocast_cache_enabled(cache);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, enabled_);
    at::autocast::set_autocast_dtype(device_, dtype_);
    at::autocast::set_autocast_cache_enabled(cache_);
  }

 private:
  c10::DeviceType device_;
  bool enabled_;
  at::ScalarType dtype_;
  bool cache_;
};

/// mh.autocast(dtype, fn, ...) -> any
///   Runs fn(...) with matrix products and convolutions in a lower precision, as torch.autocast does, and returns its
///   results. Call backward after it, outside.
///   dtype       "bfloat16"|"float16"|table   the lower precision, or {dtype = "bfloat16", enabled = true,
///     cache = true}: enabled = false computes as without it, cache = false casts a weight again in each use, as it
///     is in mh.checkpoint and on ranks that are threads
///   fn          function    what to run
///   returns     any         the results of fn
///   collective  no, but all ranks must call it
///   errors      ValueError: another dtype
///   example
///     local y = mh.autocast("bfloat16", function() return mh.ones{2, 3}:matmul(mh.ones{3, 2}) end)
///     y.dtype    --> bfloat16
int autocast(lua_State* lua) {
  const bool is_table = lua_istable(lua, 1);
  const Options options(lua, is_table ? 1 : lua_gettop(lua) + 1, "autocast", {"dtype", "enabled", "cache"});
  const at::ScalarType dtype = is_table ? options.get_dtype("dtype").value_or(at::kBFloat16) : check_dtype(lua, 1);
  TORCH_CHECK_VALUE(dtype == at::kBFloat16 || dtype == at::kHalf, "autocast: dtype ", dtype_name(dtype),
                    " is not a lower precision\n  fix   use \"bfloat16\" or \"float16\"");
  return call_under<Autocast>(lua, 2, context(lua).device.type(), dtype, options.get_bool("enabled", true),
                              options.get_bool("cache", true) && at::autocast::is_autocast_cache_enabled());
}

/// mh.manual_seed(seed) -> nothing
///   Restarts the random numbers of this rank: those of tensors, and of math.random. The same seed on all ranks
///   gives the same numbers on all ranks.
///   seed        integer     any number; the same on all ranks
///   returns     nothing
///   collective  no, but all ranks must give the same
///   example
///     mh.manual_seed(3)
///     local a = mh.rand{2}
///     mh.manual_seed(3)
///     a:equal(mh.rand{2})    --> true
int manual_seed(lua_State* lua) {
  const auto seed = static_cast<uint64_t>(check_int(lua, 1));
  context(lua).manual_seed(seed);
  seed_lua_random(lua, seed);
  // LibTorch's own generators belong to the process: thread ranks must not restart them under each
  // other.
  if (!context(lua).ranks_are_threads) at::manual_seed(seed);
  return 0;
}
/// mh.initial_seed() -> integer
///   The seed that mh.manual_seed was given last.
///   returns     integer     the seed
///   collective  no
///   example
///     mh.manual_seed(7)
///     mh.initial_seed()    --> 7
int initial_seed(lua_State* lua) {
  push(lua, context(lua).seed());
  return 1;
}

constexpr int64_t kMostThreads = 4096;

/// mh.set_num_threads(count) -> nothing
///   Sets how many threads LibTorch uses for one operator of this rank.
///   count       integer     1 to 4096
///   returns     nothing
///   collective  no
///   errors      ValueError: another number
///   example
///     mh.set_num_threads(1)
///     mh.get_num_threads()    --> 1
int set_num_threads(lua_State* lua) {
  const int64_t count = check_int(lua, 1);
  TORCH_CHECK_VALUE(count >= 1 && count <= kMostThreads, "set_num_threads: ", count,
                    " is not a number of threads\n  fix   give 1 to ", kMostThreads);
  at::set_num_threads(static_cast<int>(count));
  return 0;
}
/// mh.get_num_threads() -> integer
///   How many threads LibTorch uses for one operator of this rank.
///   returns     integer     1 or more
///   collective  no
///   example
///     mh.get_num_threads() >= 1    --> true
int get_num_threads(lua_State* lua) {
  push(lua, at::get_num_threads());
  return 1;
}

/// mh.allow_tf32(allowed) -> nothing
///   Whether CUDA's convolutions and products of float32 may round their factors to TF32 (10 bits instead of 23), which
///   is faster. It holds for the whole process, so for all its rank threads. Without a call LibTorch's defaults hold:
///   convolutions may, products may not.
///   allowed     boolean     for both
///   returns     nothing
///   collective  no
///   example
///     mh.allow_tf32(false)
///     mh.is_tf32_allowed()    --> false  false
int allow_tf32(lua_State* lua) {
  const bool allowed = check_bool(lua, 1);
  at::globalContext().setAllowTF32CuDNN(allowed);
  at::globalContext().setAllowTF32CuBLAS(allowed);
  return 0;
}
/// mh.is_tf32_allowed() -> boolean
///   Whether CUDA's convolutions may use TF32; a second result says it of matrix products.
///   returns     boolean     for convolutions, then for products
///   collective  no
///   example
///     mh.allow_tf32(true)
///     mh.is_tf32_allowed()    --> true  true
int is_tf32_allowed(lua_State* lua) {
  push(lua, at::globalContext().allowTF32CuDNN());
  push(lua, at::globalContext().allowTF32CuBLAS());
  return 2;
}

void open_autograd(lua_State* lua) {
  static const luaL_Reg functions[] = {{"grad", guard<grad>},
                                       {"no_grad", guard<no_grad>},
                                       {"enable_grad", guard<enable_grad>},
                                       {"set_grad_enabled", guard<set_grad_enabled>},
                                       {"is_grad_enabled", guard<is_grad_enabled>},
                                       {"inference_mode", guard<inference_mode>},
                                       {"autocast", guard<autocast>},
                                       {"manual_seed", guard<manual_seed>},
                                       {"initial_seed", guard<initial_seed>},
                                       {"allow_tf32", guard<allow_tf32>},
                                       {"is_tf32_allowed", guard<is_tf32_allowed>},
                                       {"set_num_threads", guard<set_num_threads>},
                                       {"get_num_threads", guard<get_num_threads>},
                                       {nullptr, nullptr}};
  add_functions(lua, functions);
  static const luaL_Reg methods[] = {{"backward", guard<backward>},
                                     {"retain_grad", guard<retain_grad>},
                                     {"register_hook", guard<register_hook>},
                                     {nullptr, nullptr}};
  add_tensor_methods(lua, methods);
}

const Binding autograd_binding{"autograd", open_autograd};

}  // namespace

}  // namespace moonhalo::scripting
