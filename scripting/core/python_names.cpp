// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/python_names.h"

#include <string_view>

namespace moonhalo::scripting {

namespace {

struct PythonName {
  std::string_view name, fix;
};

constexpr PythonName kNames[] = {
    {"fft", "mh.fft_rfft2(x) is torch.fft.rfft2(x), and so are the others"},
    {"linalg", "mh.linalg_norm(x) is torch.linalg.norm(x), and so are the others"},
    {"special", "mh.special_expit(x) is torch.special.expit(x), and so are the others"},
    {"load",
     "mh.checkpoint.load(path) reads what mh.checkpoint.save wrote, mh.safetensors.load(path) what other programs "
     "wrote"},
    {"save", "mh.checkpoint.save(path, {model = net, optimizer = opt})"},
    {"utils", "mh.clip_grad_norm(net:parameters(), 1.0) and mh.clip_grad_value"},
    {"numpy", "x:tolist() gives lists, mh.h5 and mh.safetensors.save write files"},
    {"distributed", "meshes and collectives are in mh itself: mh.init_device_mesh, mh.distribute_tensor, mh.barrier"},
    {"autograd", "mh.grad(outputs, inputs) and x:backward()"},
};

}  // namespace

std::string python_name_hint(const std::string& name) {
  for (const PythonName& known : kNames) {
    if (name == known.name) return std::string("\n  fix   ").append(known.fix);
  }
  return "";
}

}  // namespace moonhalo::scripting
