// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace moonhalo {

// The options and states of LibTorch's optimizers with PyTorch's names: visit_fields(x, f) calls f(name, reference) for
// each field.

template <class Visit>
void visit_fields(torch::optim::SGDOptions& o, Visit&& f) {
  f("lr", o.lr());
  f("momentum", o.momentum());
  f("dampening", o.dampening());
  f("weight_decay", o.weight_decay());
  f("nesterov", o.nesterov());
}
template <class Visit>
void visit_fields(torch::optim::SGDParamState& s, Visit&& f) {
  f("momentum_buffer", s.momentum_buffer());
}

template <class Adam, class Visit>
void visit_adam_options(Adam& o, Visit&& f) {
  f("lr", o.lr());
  f("betas", o.betas());
  f("eps", o.eps());
  f("weight_decay", o.weight_decay());
  f("amsgrad", o.amsgrad());
}
template <class State, class Visit>
void visit_adam_state(State& s, Visit&& f) {
  f("step", s.step());
  f("exp_avg", s.exp_avg());
  f("exp_avg_sq", s.exp_avg_sq());
  f("max_exp_avg_sq", s.max_exp_avg_sq());
}
template <class Visit>
void visit_fields(torch::optim::AdamOptions& o, Visit&& f) {
  visit_adam_options(o, f);
}
template <class Visit>
void visit_fields(torch::optim::AdamWOptions& o, Visit&& f) {
  visit_adam_options(o, f);
}
template <class Visit>
void visit_fields(torch::optim::AdamParamState& s, Visit&& f) {
  visit_adam_state(s, f);
}
template <class Visit>
void visit_fields(torch::optim::AdamWParamState& s, Visit&& f) {
  visit_adam_state(s, f);
}

template <class Visit>
void visit_fields(torch::optim::RMSpropOptions& o, Visit&& f) {
  f("lr", o.lr());
  f("alpha", o.alpha());
  f("eps", o.eps());
  f("weight_decay", o.weight_decay());
  f("momentum", o.momentum());
  f("centered", o.centered());
}
template <class Visit>
void visit_fields(torch::optim::RMSpropParamState& s, Visit&& f) {
  f("step", s.step());
  f("square_avg", s.square_avg());
  f("momentum_buffer", s.momentum_buffer());
  f("grad_avg", s.grad_avg());
}

template <class Visit>
void visit_fields(torch::optim::AdagradOptions& o, Visit&& f) {
  f("lr", o.lr());
  f("lr_decay", o.lr_decay());
  f("weight_decay", o.weight_decay());
  f("initial_accumulator_value", o.initial_accumulator_value());
  f("eps", o.eps());
}
template <class Visit>
void visit_fields(torch::optim::AdagradParamState& s, Visit&& f) {
  f("step", s.step());
  f("sum", s.sum());
}

template <class Visit>
void visit_fields(torch::optim::LBFGSOptions& o, Visit&& f) {
  f("lr", o.lr());
  f("max_iter", o.max_iter());
  f("max_eval", o.max_eval());
  f("tolerance_grad", o.tolerance_grad());
  f("tolerance_change", o.tolerance_change());
  f("history_size", o.history_size());
  f("line_search_fn", o.line_search_fn());
}
template <class Visit>
void visit_fields(torch::optim::LBFGSParamState& s, Visit&& f) {
  f("func_evals", s.func_evals());
  f("n_iter", s.n_iter());
  f("t", s.t());
  f("prev_loss", s.prev_loss());
  f("d", s.d());
  f("H_diag", s.H_diag());
  f("prev_flat_grad", s.prev_flat_grad());
  f("old_dirs", s.old_dirs());
  f("old_stps", s.old_stps());
  f("ro", s.ro());
}

}  // namespace moonhalo
