// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/training/backward_end_callbacks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <memory>
#include <utility>

namespace moonhalo {
namespace {

constexpr int kNoPass = -1;
int pass_under_way() { return torch::autograd::get_current_graph_task_id(); }

}  // namespace

bool BackwardEndCallbacks::under_way() { return pass_under_way() != kNoPass; }

void BackwardEndCallbacks::await(std::function<void()> ended, std::function<void()> failed) {
  const int pass = pass_under_way();
  if (!passes_.insert(pass).second) return;
  // Autograd calls what is queued only where a pass succeeds, but drops it in any case.
  struct Pass {
    std::function<void()> left, failed;
    bool ended = false;
    ~Pass() {
      if (ended) return;
      left();
      failed();
    }
  };
  auto one = std::make_shared<Pass>();
  one->left = [this, pass] { passes_.erase(pass); };
  one->failed = std::move(failed);
  torch::autograd::Engine::get_default_engine().queue_callback([one = std::move(one), ended = std::move(ended)] {
    one->left();
    ended();
    one->ended = true;
  });
}

}  // namespace moonhalo
