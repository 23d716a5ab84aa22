// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/python_names.h"

#include "moonhalo/scripting/core/fix_table.h"

namespace moonhalo::scripting {

namespace {

constexpr NamedFix kNames[] = {
    {"fft", "mh.fft_rfft2(x) is torch.fft.rfft2(x), and so are the others"},
    {"linalg", "mh.linalg_norm(x) is torch.linalg.norm(x), and so are the others"},
    {"special", "mh.special_expit(x) is torch.special.expit(x), and so are the others"},
    {"save",
     "mh.checkpoint.save(path, {model = net, optimizer = opt}); mh.save_pt(path, net:state_dict()) for torch.load"},
    {"utils", "mh.clip_grad_norm(net:parameters(), 1.0) and mh.clip_grad_value"},
    {"numpy", "x:tolist() gives lists, mh.h5 and mh.safetensors.save write files"},
    {"distributed", "meshes and collectives are in mh itself: mh.init_device_mesh, mh.distribute_tensor, mh.barrier"},
    {"autograd", "mh.grad(outputs, inputs) and x:backward()"},
    {"full_tensor", "x:full_tensor() is the whole tensor, on every rank"},
    {"to_local", "x:to_local() is this rank's block"},
    {"redistribute", "x:redistribute{mh.Replicate()}"},
    {"is_shard_tensor", "x.is_sharded is true for a ShardTensor"},
    {"mesh_of", "x.mesh is the mesh of a ShardTensor, x.placements says how it is cut"},
    {"DataLoader", "mh.data.open(path):windows{...}:loader{mesh = mesh, batch = 16}"},
};

constexpr NamedFix kWords[] = {
    {"True", "the word is true in Lua"},
    {"False", "the word is false in Lua"},
    {"None", "the word is nil in Lua"},
    {"len", "#list is the length of a list or a string, x:size(0) that of a tensor"},
    {"range", "for i = 0, n - 1 do counts from 0 to n - 1"},
    {"enumerate", "for i, value in ipairs(list) do, from 1; for i, row in x:iter() do, from 0"},
    {"zip", "for i, a in ipairs(first) do local b = second[i] ... end"},
    {"str", "tostring(x)"},
    {"int", "math.tointeger(x), or math.floor(x) for what is not an integer"},
    {"float", "tonumber(text); x:item() for a tensor"},
    {"isinstance", "type(x) == \"table\", mh.is_tensor(x), mh.nn.is_module(x)"},
    {"sorted", "table.sort(list), which sorts the list itself"},
    {"sum", "x:sum() of a tensor; a loop over a list"},
    {"abs", "math.abs(x), x:abs() of a tensor"},
    {"min", "math.min(a, b), x:min() of a tensor"},
    {"max", "math.max(a, b), x:max() of a tensor"},
    {"round", "math.floor(x + 0.5), x:round() of a tensor"},
    {"exit", "os.exit(status)"},
    {"open", "io.open(path, mode)"},
    {"sys", "arg[1] is the script's first word behind --, os.exit(status) ends it"},
    {"np", "tensors are the arrays here: mh.linspace(0, 1, 5), x:tolist()"},
    {"torch", "local mh = require \"moonhalo\" has the functions of torch"},
    {"nn", "local nn = mh.nn at the head of the script"},
    {"optim", "local optim = mh.optim at the head of the script"},
    {"F", "the functions of torch.nn.functional are in mh itself: mh.relu(x)"},
    {"f", "Lua has no f\"...\": write (\"loss %g\"):format(loss); or assign a variable f first"},
};

}  // namespace

std::string python_name_hint(const std::string& name) { return fix_of(kNames, name); }
std::string python_word_hint(const std::string& name) { return fix_of(kWords, name); }

}  // namespace moonhalo::scripting
