// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/training/backward_ends.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

namespace moonhalo {
namespace {

constexpr int kNoPass = -1;
int pass_under_way() { return torch::autograd::get_current_graph_task_id(); }

}  // namespace

bool BackwardEnds::under_way() { return pass_under_way() != kNoPass; }

void BackwardEnds::await(std::function<void()> ended) {
  const int pass = pass_under_way();
  if (!passes_.insert(pass).second) return;
  torch::autograd::Engine::get_default_engine().queue_callback([this, pass, ended = std::move(ended)] {
    passes_.erase(pass);
    ended();
  });
}

}  // namespace moonhalo
