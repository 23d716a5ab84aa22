// SPDX-License-Identifier: Apache-2.0
// Pipelines. mh.pipeline (internal/pipeline.lua) makes them out of modules.
#include "moonhalo/engine/pipeline/pipeline.h"

#include <c10/util/Exception.h>

#include "moonhalo/engine/training/clip.h"
#include "moonhalo/scripting/bind/mesh.h"
#include "moonhalo/scripting/core/held_values.h"

namespace moonhalo::scripting {

template <>
inline constexpr const char* kObjectName<Pipeline> = "Pipeline";

namespace {

using Tensors = Pipeline::Tensors;

std::shared_ptr<Pipeline> this_pipeline(lua_State* lua) { return check_object<Pipeline>(lua, 1); }

/// Calls `function` with `first`, which pushes and counts, and tensors; gives its results, which are tensors.
template <typename Function>
Tensors call_stage(const Function& function, const Tensors& tensors, const char* what,
                   std::optional<int64_t> first = {}) {
  function.push();
  lua_State* lua = function.lua();
  const int before = lua_gettop(lua) - 1;
  luaL_checkstack(lua, static_cast<int>(tensors.size()) + 1, "pipeline: too many tensors");
  if (first) push(lua, *first);
  for (const at::Tensor& tensor : tensors) push(lua, tensor);
  call_traced(lua, static_cast<int>(tensors.size()) + (first ? 1 : 0), LUA_MULTRET);
  Tensors results;
  for (int i = before + 1; i <= lua_gettop(lua); ++i) {
    const at::Tensor* tensor = to_tensor(lua, i);
    const std::string got = tensor == nullptr ? describe(lua, i) : "";
    if (tensor == nullptr) lua_settop(lua, before);
    TORCH_CHECK_TYPE(tensor != nullptr, "pipeline: ", what, " gives tensors, result ", i - before, " is ", got);
    results.push_back(*tensor);
  }
  lua_settop(lua, before);
  return results;
}

at::Tensor call_for_one(const Reference& function, const Tensors& tensors, const char* what,
                        std::optional<int64_t> first = {}) {
  const Tensors results = call_stage(function, tensors, what, first);
  TORCH_CHECK_VALUE(results.size() == 1, "pipeline: ", what, " returns one number\n  have  ", results.size(),
                    " results\n  fix   end it with return, and one tensor");
  return results[0];
}

std::vector<Tensors> check_samples(lua_State* lua, int index) {
  std::vector<Tensors> samples;
  for (lua_Integer i = 1; i <= luaL_len(lua, index); ++i) {
    lua_geti(lua, index, i);
    samples.push_back(check_tensor_list(lua, -1));
    lua_pop(lua, 1);
  }
  return samples;
}

Reference check_function(lua_State* lua, int index) {
  if (!is_callable(lua, index)) argument_error(lua, index, "a function");
  return {lua, index};
}

/// _pipeline(mesh, dim, stages, {schedule =, micros =}): collective over the mesh.
int make_pipeline(lua_State* lua) {
  const auto mesh = check_object<DeviceMesh>(lua, 1);
  const std::string dim = check_string(lua, 2);
  std::vector<Pipeline::Stage> stages;
  // A stage may refer to its pipeline, so the pipeline's userdata, which is made last, holds the functions.
  const auto functions = std::make_shared<std::vector<OwnedFunction>>();
  for (lua_Integer i = 1; i <= luaL_len(lua, 3); ++i) {
    lua_geti(lua, 3, i);
    const std::string what = "stage " + std::to_string(i - 1);
    stages.push_back([functions, position = static_cast<size_t>(i - 1), what](const Tensors& inputs) {
      return call_stage(functions->at(position), inputs, what.c_str());
    });
    lua_pop(lua, 1);
  }
  const Options options(lua, 4, "pipeline", {"schedule", "micros"});
  push_object(lua,
              std::make_shared<Pipeline>(mesh, dim, std::move(stages),
                                         PipelineOptions{.schedule = parse_schedule(options.get_string("schedule", "")),
                                                         .micros = options.get_int("micros", 1)}));
  for (lua_Integer i = 1; i <= luaL_len(lua, 3); ++i) {
    lua_geti(lua, 3, i);
    functions->emplace_back(lua, lua_gettop(lua) - 1, -1);
    lua_pop(lua, 1);
  }
  return 1;
}

Pipeline::Loss loss_of(const Reference& function) {
  return [&function](const Tensors& outputs, int64_t micro) {
    return call_for_one(function, outputs, "the loss", micro + 1);
  };
}

/// pipeline:train_step(samples, loss, parameters, {is_dummy_batch =, scale_fn =}) -> losses. `samples`: lists of
/// tensors; loss(micro, outputs...) counts from 1; `parameters`: all of this rank's stages.
int train_step(lua_State* lua) {
  const std::vector<Tensors> samples = check_samples(lua, 2);
  const Reference function = check_function(lua, 3);
  const Options given(lua, 5, "train_step", {"is_dummy_batch", "scale_fn"});
  Pipeline::TrainOptions options;
  options.parameters = check_tensor_list(lua, 4);
  given.push("is_dummy_batch");
  for (lua_Integer i = 1; !is_nil(lua, -1) && i <= luaL_len(lua, -1); ++i) {
    lua_geti(lua, -1, i);
    options.is_dummy_batch.push_back(check_bool(lua, -1));
    lua_pop(lua, 1);
  }
  given.push("scale_fn");
  if (!is_nil(lua, -1)) {
    options.scale_fn = [scale = check_function(lua, -1)](const at::Tensor& loss) {
      return call_for_one(scale, {loss}, "scale_fn");
    };
  }
  push(lua, this_pipeline(lua)->train_step(samples, loss_of(function), options));
  return 1;
}

/// pipeline:refuse_step("train" | "infer", why)
int refuse_step(lua_State* lua) {
  const bool trains = check_string(lua, 2) == "train";
  this_pipeline(lua)->refuse_step(trains ? Pipeline::StepKind::kTrain : Pipeline::StepKind::kInfer,
                                  check_string(lua, 3));
}

/// pipeline:infer_step(samples[, loss]) -> a list of tensors for each sample; with loss(micro, outputs...): the losses.
int infer_step(lua_State* lua) {
  const std::vector<Tensors> samples = check_samples(lua, 2);
  if (is_nil(lua, 3)) {
    push(lua, this_pipeline(lua)->infer_step(samples));
  } else {
    const Reference function = check_function(lua, 3);
    push(lua, this_pipeline(lua)->infer_step(samples, loss_of(function)));
  }
  return 1;
}

/// pipeline:tie(stages, parameter | nil)
int tie(lua_State* lua) {
  this_pipeline(lua)->tie(check_int_list(lua, 2), opt_tensor(lua, 3));
  return 0;
}

/// pipeline:hold(parameters)
int hold(lua_State* lua) {
  this_pipeline(lua)->hold(check_tensor_list(lua, 2));
  return 0;
}

/// pipeline:clip_grad_norm(parameters, max_norm, norm_type) -> the norm of all stages; `parameters`: this rank's, or
/// none
int clip(lua_State* lua) {
  push(lua, clip_grad_norm(check_tensor_list(lua, 2), check_number(lua, 3), check_number(lua, 4), false,
                           this_pipeline(lua)->group()));
  return 1;
}

/// pipeline:from_stage(stage, tensors) -> tensors
int from_stage(lua_State* lua) {
  push(lua, this_pipeline(lua)->from_stage(check_int(lua, 2), check_tensor_list(lua, 3)));
  return 1;
}

int has_stage(lua_State* lua) {
  push(lua, this_pipeline(lua)->has_stage(check_int(lua, 2)));
  return 1;
}

int pipeline_mesh(lua_State* lua) {
  push_object(lua, this_pipeline(lua)->mesh());
  return 1;
}

int schedule(lua_State* lua) {
  push(lua, to_string(this_pipeline(lua)->schedule()));
  return 1;
}

void open_pipeline(lua_State* lua) {
  static const luaL_Reg methods[] = {{"train_step", guard<train_step>},
                                     {"infer_step", guard<infer_step>},
                                     {"refuse_step", guard<refuse_step>},
                                     {"tie", guard<tie>},
                                     {"hold", guard<hold>},
                                     {"clip_grad_norm", guard<clip>},
                                     {"from_stage", guard<from_stage>},
                                     {"has_stage", guard<has_stage>},
                                     {nullptr, nullptr}};
  static const luaL_Reg getters[] = {{"mesh", guard<pipeline_mesh>}, {"schedule", guard<schedule>}, {nullptr, nullptr}};
  static const luaL_Reg functions[] = {{"_pipeline", guard<make_pipeline>}, {nullptr, nullptr}};
  define_object<Pipeline>(lua, methods, getters);
  add_functions(lua, functions);
}

const Binding pipeline_binding{"pipeline", open_pipeline};

}  // namespace
}  // namespace moonhalo::scripting
