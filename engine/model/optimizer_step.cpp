// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/model/optimizer_step.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <vector>

namespace moonhalo {
namespace {

namespace to = torch::optim;

bool is_known(const to::Optimizer& optimizer) {
  const auto is = [&]<class... Kinds>() { return (... || (dynamic_cast<const Kinds*>(&optimizer) != nullptr)); };
  return is.operator()<to::Adagrad, to::Adam, to::AdamW, to::LBFGS, to::RMSprop, to::SGD>();
}

// The tensors of a state that have the parameter's shape.
std::vector<at::Tensor*> tensors_of(to::OptimizerParamState& state) {
  const auto adam = [](auto& s) { return std::vector{&s.exp_avg(), &s.exp_avg_sq(), &s.max_exp_avg_sq()}; };
  if (auto* s = dynamic_cast<to::AdamParamState*>(&state)) return adam(*s);
  if (auto* s = dynamic_cast<to::AdamWParamState*>(&state)) return adam(*s);
  if (auto* s = dynamic_cast<to::RMSpropParamState*>(&state))
    return {&s->square_avg(), &s->momentum_buffer(), &s->grad_avg()};
  if (auto* s = dynamic_cast<to::AdagradParamState*>(&state)) return {&s->sum()};
  if (auto* s = dynamic_cast<to::SGDParamState*>(&state)) return {&s->momentum_buffer()};
  return {};
}

at::Tensor pairs_of(const at::Tensor& tensor) { return at::view_as_real(tensor.detach().resolve_conj()); }

// The complex parameters of an optimizer, which stand in its groups and in its state as pairs of reals from enter() to
// leave().
class RealPairs {
 public:
  explicit RealPairs(to::Optimizer& optimizer) : optimizer_(optimizer) {
    auto& groups = optimizer.param_groups();
    for (size_t g = 0; g < groups.size(); ++g) {
      for (size_t i = 0; i < groups[g].params().size(); ++i) {
        const at::Tensor& parameter = groups[g].params()[i];
        if (parameter.defined() && parameter.is_complex()) pairs_.push_back({g, i, parameter, {}, {}});
      }
    }
  }

  bool empty() const { return pairs_.empty(); }

  void enter() {
    const at::NoGradGuard no_grad;
    for (Pair& pair : pairs_) {
      // The same view all through a step: LBFGS looks its state up by it.
      if (!pair.real.defined()) {
        TORCH_CHECK_VALUE(!pair.parameter.is_conj(),
                          "step: a complex parameter is a lazy conjugate, which has no pairs to write to",
                          "\n  have  shape ", pair.parameter.sizes(),
                          "\n  fix   make it whole by resolve_conj() before it is a parameter");
        pair.real = pairs_of(pair.parameter);
      }
      const at::Tensor& grad = pair.parameter.grad();
      pair.real.mutable_grad() = grad.defined() ? pairs_of(grad) : at::Tensor();
      place(pair, pair.real);
      if (to::OptimizerParamState* state = rekey(pair.parameter, pair.real)) {
        for (at::Tensor* tensor : tensors_of(*state)) {
          if (!tensor->defined() || !tensor->is_complex()) continue;
          const at::Tensor real = pairs_of(*tensor);
          pair.state.push_back({*tensor, real});
          *tensor = real;
        }
      }
    }
  }

  void leave() {
    const at::NoGradGuard no_grad;
    for (Pair& pair : pairs_) {
      place(pair, pair.parameter);
      if (to::OptimizerParamState* state = rekey(pair.real, pair.parameter)) {
        for (at::Tensor* tensor : tensors_of(*state)) *tensor = complex_of(pair, *tensor);
      }
      pair.state.clear();
    }
  }

 private:
  struct Held {
    at::Tensor complex, real;
  };
  struct Pair {
    size_t group, index;
    at::Tensor parameter, real;
    std::vector<Held> state;
  };

  void place(const Pair& pair, const at::Tensor& parameter) {
    optimizer_.param_groups()[pair.group].params()[pair.index] = parameter;
  }

  to::OptimizerParamState* rekey(const at::Tensor& from, const at::Tensor& into) {
    auto& all = optimizer_.state();
    const auto found = all.find(from.unsafeGetTensorImpl());
    if (found == all.end()) return nullptr;
    auto state = std::move(found->second);
    all.erase(found);
    return (all[into.unsafeGetTensorImpl()] = std::move(state)).get();
  }

  // A tensor that was complex before is the same one again; those that the step made become complex.
  static at::Tensor complex_of(const Pair& pair, const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    for (const Held& held : pair.state) {
      if (held.real.is_same(tensor)) return held.complex;
    }
    return at::view_as_complex(tensor);
  }

  to::Optimizer& optimizer_;
  std::vector<Pair> pairs_;
};

// LibTorch begins Adagrad's sums in the constructor: by the defaults, without imaginary parts, and not for groups added
// later.
void begin_sums(to::Adagrad& optimizer) {
  const at::NoGradGuard no_grad;
  for (const to::OptimizerParamGroup& group : optimizer.param_groups()) {
    const double initial = static_cast<const to::AdagradOptions&>(group.options()).initial_accumulator_value();
    for (const at::Tensor& parameter : group.params()) {
      auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
      if (!state) state = std::make_unique<to::AdagradParamState>();
      auto& own = static_cast<to::AdagradParamState&>(*state);
      if (own.step() > 0) continue;
      const at::Scalar start =
          parameter.is_complex() ? at::Scalar(c10::complex<double>(initial, initial)) : at::Scalar(initial);
      own.sum(at::full_like(parameter.detach(), start));
    }
  }
}

}  // namespace

at::Tensor optimizer_step(to::Optimizer& optimizer, std::function<at::Tensor()> closure) {
  if (auto* adagrad = dynamic_cast<to::Adagrad*>(&optimizer)) begin_sums(*adagrad);
  RealPairs pairs(optimizer);
  if (pairs.empty()) return optimizer.step(std::move(closure));
  TORCH_CHECK_NOT_IMPLEMENTED(is_known(optimizer),
                              "step: an optimizer that is not LibTorch's own has complex parameters",
                              "\n  fix   train view_as_real of them, and use view_as_complex of that");
  const auto between = [&] {
    pairs.leave();
    at::Tensor loss = closure();
    pairs.enter();
    return loss;
  };
  at::Tensor loss;
  try {
    pairs.enter();
    loss = closure ? optimizer.step(between) : optimizer.step();
  } catch (...) {
    pairs.leave();
    throw;
  }
  pairs.leave();
  return loss;
}

}  // namespace moonhalo
