// SPDX-License-Identifier: Apache-2.0
// Host cost of a program of torch.export (mh.export.load) against the same model in Lua, on tensors so small that
// nothing else counts, one rank: a residual block (norm, linear, gelu, linear, sum), forward alone.
//   bench_exported           instructions of a call, the same at any load, and CPU time, medians of calls in turns
//   bench_exported --check   the instructions alone: status 1 where the program takes more than Lua, 77 where they
//                            cannot be counted
#include <ATen/Parallel.h>
#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/scripting/core/open.h"
#include "tests/bench/instructions.h"
#include "tests/support/folder.h"

namespace {

namespace mh = moonhalo;
using Json = nlohmann::ordered_json;

constexpr int kBlocks = 1, kWidth = 4, kOperators = 5 * kBlocks, kRounds = 21, kCalls = 100;

// ---- The program, as Python writes it -------------------------------------------------------------------------------

Json tensor(const std::string& name) { return {{"as_tensor", {{"name", name}}}}; }
Json argument(const std::string& name, const Json& value) { return {{"name", name}, {"arg", value}}; }

class Program {
 public:
  Program() {
    std::string x = "x";
    for (int i = 0; i < kBlocks; ++i) x = add_block(std::to_string(i), x);
    inputs_.push_back(tensor("x"));
    input_specs_.push_back({{"user_input", {{"arg", tensor("x")}}}});
    const Json sizes = Json::array({{{"as_int", kWidth}}, {{"as_int", kWidth}}});
    const std::string leaf = R"({"type": null, "context": null, "children_spec": []})";
    const auto tuple = [](const std::string& children) {
      return R"({"type": "builtins.tuple", "context": "null", "children_spec": [)" + children + "]}";
    };
    const std::string none = R"({"type": "builtins.dict", "context": "[]", "children_spec": []})";
    const Json call{{"in_spec", "[1, " + tuple(tuple(leaf) + ", " + none) + "]"},
                    {"out_spec", "[1, " + leaf + "]"},
                    {"forward_arg_names", Json::array({"x"})}};
    all_ = {
        {"schema_version", {{"major", 8}, {"minor", 17}}},
        {"range_constraints", Json::object()},
        {"graph_module",
         {{"graph",
           {{"inputs", inputs_},
            {"outputs", Json::array({tensor(x)})},
            {"nodes", nodes_},
            {"tensor_values", {{"x", {{"sizes", sizes}}}}}}},
          {"signature",
           {{"input_specs", input_specs_}, {"output_specs", Json::array({{{"user_output", {{"arg", tensor(x)}}}}})}}},
          {"module_call_graph", Json::array({{{"fqn", ""}, {"signature", call}}})}}}};
  }

  void save(const std::string& path) const {
    caffe2::serialize::PyTorchStreamWriter writer(path);
    const auto write = [&](const std::string& name, const std::string& data) {
      writer.writeRecord(name, data.data(), data.size());
    };
    Json config = Json::object();
    for (size_t i = 0; i < weights_.size(); ++i) {
      const auto& [name, dims] = weights_[i];
      const std::vector<float> values(dims == 2 ? kWidth * kWidth : kWidth, 0.5F);
      const std::string record = "weight_" + std::to_string(i);
      writer.writeRecord("data/weights/" + record, values.data(), values.size() * sizeof(float));
      Json sizes = Json::array(), strides = Json::array();
      for (int d = 0; d < dims; ++d) {
        sizes.push_back({{"as_int", kWidth}});
        strides.push_back({{"as_int", d + 1 < dims ? kWidth : 1}});
      }
      config[name] = {{"path_name", record},
                      {"use_pickle", false},
                      {"tensor_meta",
                       {{"dtype", 7},
                        {"sizes", sizes},
                        {"strides", strides},
                        {"storage_offset", {{"as_int", 0}}},
                        {"requires_grad", true}}}};
    }
    write("data/weights/model_weights_config.json", Json{{"config", config}}.dump());
    write("models/model.json", all_.dump());
    writer.writeEndOfFile();
  }

 private:
  std::string add_block(const std::string& block, const std::string& x) {
    const Json width{{"as_ints", Json::array({kWidth})}};
    const std::string norm = add(block, "norm", "layer_norm.default",
                                 Json::array({argument("input", tensor(x)), argument("normalized_shape", width),
                                              argument("weight", weight(block + ".norm.weight", 1)),
                                              argument("bias", weight(block + ".norm.bias", 1))}));
    const std::string wide = add_linear(block, "wide", norm);
    const std::string bent = add(block, "", "gelu.default", Json::array({argument("self", tensor(wide))}));
    const std::string narrow = add_linear(block, "narrow", bent);
    return add(block, "", "add.Tensor", Json::array({argument("self", tensor(x)), argument("other", tensor(narrow))}));
  }
  std::string add_linear(const std::string& block, const std::string& module, const std::string& x) {
    const std::string name = block + "." + module;
    return add(block, module, "linear.default",
               Json::array({argument("input", tensor(x)), argument("weight", weight(name + ".weight", 2)),
                            argument("bias", weight(name + ".bias", 1))}));
  }
  std::string add(const std::string& block, const std::string& module, const std::string& op, const Json& inputs) {
    std::string out = "v" + std::to_string(nodes_.size());
    std::string modules = "L__self__,,net.Net;L__self___" + block + "," + block + ",net.Block";
    if (!module.empty()) modules += ";L__self__" + module + "," + block + "." + module + ",net.Part";
    nodes_.push_back({{"target", "torch.ops.aten." + op},
                      {"inputs", inputs},
                      {"outputs", Json::array({tensor(out)})},
                      {"metadata", {{"nn_module_stack", modules}}}});
    return out;
  }
  Json weight(const std::string& name, int dims) {
    const std::string input = "p_" + std::to_string(weights_.size());
    weights_.emplace_back(name, dims);
    inputs_.push_back(tensor(input));
    input_specs_.push_back({{"parameter", {{"arg", {{"name", input}}}, {"parameter_name", name}}}});
    return tensor(input);
  }

  std::vector<std::pair<std::string, int>> weights_;
  Json inputs_ = Json::array(), input_specs_ = Json::array(), nodes_ = Json::array(), all_;
};

// ---- The same in Lua ------------------------------------------------------------------------------------------------

constexpr const char* kScript = R"lua(
local path, blocks, width = ...
local mh = require "moonhalo"
local nn = mh.nn
local Block = nn.Module:extend("Block")
function Block:init()
  self.norm, self.wide, self.narrow = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
end
function Block:forward(x) return x + self.narrow(mh.gelu(self.wide(self.norm(x)))) end
local all = {}
for i = 1, blocks do all[i] = Block() end
local own, program = nn.Sequential(table.unpack(all)), mh.export.load(path)
own:load_state_dict(program:state_dict())
local mesh = mh.init_device_mesh("cpu", {1}, {"ranks"})
local plain = mh.linspace(-1, 1, width * width):view(width, width)
local inputs = {plain = plain, blocks = mh.distribute_tensor(plain, mesh, {mh.Shard(0)})}
function prepare(kind, grad)
  mh.set_grad_enabled(grad)
  x = inputs[kind]
  assert((own(x) - program(x)):abs():max():item() < 1e-6)
end
function call_own() local y = own(x) end
function call_program() local y = program(x) end
)lua";

void call(lua_State* lua, int arguments) {
  TORCH_CHECK(lua_pcall(lua, arguments, 0, 0) == LUA_OK, lua_tostring(lua, -1));
}
void call_global(lua_State* lua, const char* name) {
  lua_getglobal(lua, name);
  call(lua, 0);
}

// ---- Measuring ------------------------------------------------------------------------------------------------------

int64_t middle(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int64_t instructions(lua_State* lua, const char* name) {
  lua_gc(lua, LUA_GCCOLLECT);  // so that none comes in the call
  return mh::bench::instructions_of([&] { call_global(lua, name); }).all;
}

int64_t nanoseconds(lua_State* lua, const char* name) {
  const std::clock_t begin = std::clock();
  for (int i = 0; i < kCalls; ++i) call_global(lua, name);
  return static_cast<int64_t>(1e9 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / kCalls);
}

// True if the program costs no more than Lua.
bool compare(lua_State* lua, const char* kind, bool grad, bool times) {
  lua_getglobal(lua, "prepare");
  lua_pushstring(lua, kind);
  lua_pushboolean(lua, grad);
  call(lua, 2);
  for (const char* name : {"call_own", "call_program"}) nanoseconds(lua, name);
  const int64_t own = instructions(lua, "call_own"), program = instructions(lua, "call_program");
  std::printf("%-7s %-8s %12lld %12lld %7.2f", kind, grad ? "graph" : "no graph",
              static_cast<long long>(own / kOperators), static_cast<long long>(program / kOperators),
              static_cast<double>(program) / static_cast<double>(own));
  if (times) {
    std::vector<int64_t> own_ns, program_ns;
    for (int round = 0; round < kRounds; ++round) {
      own_ns.push_back(nanoseconds(lua, "call_own"));
      program_ns.push_back(nanoseconds(lua, "call_program"));
    }
    const int64_t a = middle(own_ns), b = middle(program_ns);
    std::printf("   %9lld %9lld %7.2f", static_cast<long long>(a / kOperators), static_cast<long long>(b / kOperators),
                static_cast<double>(b) / static_cast<double>(a));
  }
  std::printf("\n");
  std::fflush(stdout);
  return program <= own;
}

}  // namespace

int main(int argc, char** argv) {
  if (!mh::bench::kCountsInstructions) {
    std::printf("not judged: instructions are counted on x86-64 only\n");
    return 77;
  }
  const bool times = argc < 2 || std::strcmp(argv[1], "--check") != 0;
  const mh::testing::Folder folder;
  Program().save(folder / "net.pt2");
  at::set_num_threads(1);
  std::printf("an operator of a forward, of Lua's model and of the program: instructions%s\n",
              times ? ", and nanoseconds of CPU time" : "");
  std::printf("%-16s %12s %12s %7s\n", "tensors", "Lua", "program", "ratio");
  bool good = true;
  mh::run_ranks(
      1,
      [&](mh::Communicator& world) {
        mh::scripting::Context context;
        context.world = world.shared_from_this();
        const auto state = mh::scripting::new_state(std::move(context));
        lua_State* const lua = state.get();
        TORCH_CHECK(luaL_loadstring(lua, kScript) == LUA_OK, lua_tostring(lua, -1));
        lua_pushstring(lua, (folder / "net.pt2").c_str());
        lua_pushinteger(lua, kBlocks);
        lua_pushinteger(lua, kWidth);
        call(lua, 3);
        for (const char* kind : {"plain", "blocks"}) {
          for (const bool grad : {false, true}) good = compare(lua, kind, grad, times) && good;
        }
      },
      1);
  return good ? 0 : 1;
}
