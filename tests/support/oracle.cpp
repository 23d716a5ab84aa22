// SPDX-License-Identifier: Apache-2.0
#include "tests/support/oracle.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <mutex>
#include <numeric>
#include <sstream>
#include <utility>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/dispatch/dispatch.h"
#include "tests/support/named_cases.h"
#include "tests/support/ranks.h"
#include "tests/support/refusals.h"
#include "tests/support/test_device.h"

namespace moonhalo::testing {
namespace {

bool differentiable(const at::Tensor& tensor) { return tensor.is_floating_point() || tensor.is_complex(); }

struct Outcome {
  std::vector<at::Tensor> results;
  std::vector<at::Tensor> gradients;         // per input; undefined when unused
  std::vector<at::Tensor> second_gradients;  // likewise
};

// `cotangent(like, seed)` makes the gradient that stands for a result.
Outcome run(const std::vector<at::Tensor>& inputs, const std::vector<bool>& wanted, const Program& program,
            const Oracle& options, const std::function<at::Tensor(const at::Tensor&, int64_t)>& cotangent) {
  Outcome outcome;
  outcome.results = program(inputs);
  torch::autograd::variable_list roots, cotangents, leaves;
  for (size_t i = 0; i < outcome.results.size(); ++i) {
    const at::Tensor& result = outcome.results[i];
    if (!result.defined() || !result.requires_grad()) continue;
    roots.push_back(result);
    cotangents.push_back(cotangent(result, 77 + static_cast<int64_t>(i)));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (wanted[i]) leaves.push_back(inputs[i]);
  }
  if (roots.empty() || leaves.empty()) return outcome;
  if (options.double_backward) {
    const auto first = torch::autograd::grad(roots, leaves, cotangents, true, true, true);
    torch::autograd::variable_list second_roots, second_cotangents;
    for (size_t i = 0; i < first.size(); ++i) {
      if (!first[i].defined() || !first[i].requires_grad()) continue;
      second_roots.push_back(first[i]);
      second_cotangents.push_back(cotangent(first[i], 177 + static_cast<int64_t>(i)));
    }
    if (!second_roots.empty()) {
      outcome.second_gradients = torch::autograd::grad(second_roots, leaves, second_cotangents, true, false, true);
    }
  }
  if (options.backward) {
    torch::autograd::backward(roots, cotangents);
    for (const at::Tensor& leaf : leaves) outcome.gradients.push_back(leaf.grad());
  }
  for (at::Tensor& result : outcome.results) result = result.defined() ? result.detach() : result;
  return outcome;
}

at::Tensor whole(const at::Tensor& tensor) {
  return tensor.defined() && is_shard_tensor(tensor) ? full_tensor(tensor.detach()) : tensor;
}

// Every rank walks the same lists, because full_tensor is collective.
void compare(const char* what, const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected,
             double tolerance, std::ostream& out) {
  if (actual.size() != expected.size()) {
    out << what << ": " << actual.size() << " tensors instead of " << expected.size() << "\n";
    return;
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    const std::string text = difference(whole(actual[i]), expected[i], tolerance);
    if (text.empty()) continue;
    out << what << " " << i << ": " << text << "\n";
    if (actual[i].defined() && is_shard_tensor(actual[i]))
      out << "    held as " << spec(actual[i])->to_string() << "\n";
  }
}

// The leaves' gradients must be ready for an optimizer: blocks where the leaf has blocks.
void compare_cuts(const std::vector<at::Tensor>& inputs, const std::vector<bool>& wanted, std::ostream& out) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!wanted[i] || !inputs[i].grad().defined() || !is_shard_tensor(inputs[i])) continue;
    if (!is_shard_tensor(inputs[i].grad())) {
      out << "gradient of input " << i << " is a plain tensor\n";
      continue;
    }
    const SpecPtr& leaf = spec(inputs[i]);
    const SpecPtr& grad = spec(inputs[i].grad());
    for (int64_t d = 0; d < leaf->ndim(); ++d) {
      if (leaf->is_cut(d) && !(leaf->cut(d) == grad->cut(d))) {
        out << "gradient of input " << i << " is held as " << grad->to_string() << ", its leaf as " << leaf->to_string()
            << "\n";
        break;
      }
    }
  }
}

class Tracing {
 public:
  explicit Tracing(std::vector<TraceRecord>* calls) : before_(std::exchange(Dispatch::of_this_thread().trace, calls)) {}
  ~Tracing() { Dispatch::of_this_thread().trace = before_; }
  Tracing(const Tracing&) = delete;

 private:
  std::vector<TraceRecord>* before_;
};

// A call moves what its rule declares. An operator without a rule is gathered.
void compare_traffic(const std::vector<TraceRecord>& calls, std::ostream& out) {
  for (const TraceRecord& call : calls) {
    if (call.gathered) continue;
    const size_t dot = call.op.find('.');
    const Rule* rule = find_rule({call.op.substr(0, dot), dot == std::string::npos ? "" : call.op.substr(dot + 1)});
    const Traffic declared = rule != nullptr ? rule->traffic : Traffic::kNone;
    if (const Traffic more = call.traffic - (declared | Traffic::kInputs | Traffic::kParameters);
        more != Traffic::kNone)
      out << call.op << " moved " << to_string(more) << ", its rule declares " << to_string(declared) << "\n";
  }
}

}  // namespace

std::string message_of(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return message_of(error);
  }
  return "";
}

void on_mesh(std::vector<int64_t> mesh_shape, const std::function<void(const MeshPtr&)>& body, Fallback fallback) {
  const int64_t ranks = std::accumulate(mesh_shape.begin(), mesh_shape.end(), int64_t{1}, std::multiplies<>());
  test_device();  // before the ranks begin
  run_test_ranks(static_cast<int>(ranks), [&](Communicator& world) {
    set_fallback(fallback);
    body(init_device_mesh(world, test_device(), mesh_shape));
  });
}

namespace {

// Kernels of a GPU round otherwise than those of the CPU, so plain tensors are on it, too. A program that ends in an
// error there (it has tensors of the host, or no kernel) is compared with the CPU, if blocks do not end in the same
// error.
Outcome outcome_of_plain_tensors(const std::function<Outcome(c10::Device)>& program) {
  const c10::Device device(test_device());
  if (!device.is_cuda()) return program(c10::Device(c10::kCPU));
  Outcome outcome;
  try {
    outcome = program(device);
  } catch (const c10::Error&) {
    return program(c10::Device(c10::kCPU));
  }
  for (auto* tensors : {&outcome.results, &outcome.gradients, &outcome.second_gradients}) {
    for (at::Tensor& tensor : *tensors) {
      if (tensor.defined()) tensor = tensor.cpu();
    }
  }
  return outcome;
}

/// The cases on plain tensors, when it is made, then on the blocks of every rank, whose differences it collects.
class ComparisonWithPlain {
 public:
  ComparisonWithPlain(const std::vector<NamedCase>& cases, const Oracle& options);

  /// Runs all cases on plain tensors of `device`.
  void run_on(c10::Device device) const {
    for (size_t t = 0; t < cases_.size(); ++t) outcome_on(t, device);
  }
  /// Runs all cases on the blocks of this rank and compares them. Collective; throws what a case throws.
  void run_on_blocks(const MeshPtr& mesh);
  /// Adds a test failure for each of the first five cases that differ, as the first rank reports them.
  void add_failures(at::IntArrayRef mesh_shape) const;

 private:
  Outcome outcome_on(size_t t, c10::Device device) const;
  std::vector<at::Tensor> inputs_of(size_t t, const MeshPtr& mesh) const;
  void compare_case(size_t t, const MeshPtr& mesh);
  void report(size_t t, int64_t rank, const std::string& text) {
    const std::lock_guard lock(mutex_);
    reports_[{t, rank}] = text;
  }

  const std::vector<NamedCase>& cases_;
  const Oracle& options_;
  std::vector<std::vector<bool>> wanted_;  // gradients, by case and input
  std::vector<Outcome> expected_;
  std::mutex mutex_;
  std::map<std::pair<size_t, int64_t>, std::string> reports_;  // by case and rank
};

ComparisonWithPlain::ComparisonWithPlain(const std::vector<NamedCase>& cases, const Oracle& options)
    : cases_(cases), options_(options), wanted_(cases.size()) {
  const bool derives = options.backward || options.double_backward;
  for (size_t t = 0; t < cases.size(); ++t) {
    for (const Input& input : cases[t].inputs)
      wanted_[t].push_back(input.grad && differentiable(input.full) && derives);
    expected_.push_back(outcome_of_plain_tensors([&](c10::Device device) { return outcome_on(t, device); }));
  }
}

Outcome ComparisonWithPlain::outcome_on(size_t t, c10::Device device) const {
  std::vector<at::Tensor> plain;
  for (const Input& input : cases_[t].inputs) {
    const at::Tensor moved = input.full.detach().to(device, input.full.scalar_type(), false, /*copy=*/true);
    plain.push_back(moved.requires_grad_(wanted_[t][plain.size()]));
  }
  return run(plain, wanted_[t], cases_[t].program, options_, [](const at::Tensor& like, int64_t seed) {
    return make_tensor(like.sizes(), seed, like.scalar_type()).to(like.device());
  });
}

std::vector<at::Tensor> ComparisonWithPlain::inputs_of(size_t t, const MeshPtr& mesh) const {
  std::vector<at::Tensor> tensors;
  for (const Input& input : cases_[t].inputs) {
    const at::Tensor tensor =
        input.plain ? on_device(input.full.detach().clone(), *mesh) : shard_of(input.full, mesh, input.placements);
    tensors.push_back(tensor.requires_grad_(wanted_[t][tensors.size()]));
  }
  return tensors;
}

void ComparisonWithPlain::compare_case(size_t t, const MeshPtr& mesh) {
  const std::vector<at::Tensor> tensors = inputs_of(t, mesh);
  std::vector<TraceRecord> calls;
  const Tracing tracing(&calls);
  const Outcome actual =
      run(tensors, wanted_[t], cases_[t].program, options_, [&](const at::Tensor& like, int64_t seed) {
        const at::Tensor full = make_tensor(like.sizes(), seed, like.scalar_type());
        return is_shard_tensor(like) ? shard_of(full, mesh, without_partial(spec(like))->placements())
                                     : full.to(like.device());
      });

  const Outcome& expected = expected_[t];
  std::ostringstream out;
  compare_traffic(calls, out);
  compare("result", actual.results, expected.results, options_.tolerance, out);
  compare("gradient", actual.gradients, expected.gradients, options_.tolerance, out);
  compare("second gradient", actual.second_gradients, expected.second_gradients, options_.tolerance, out);
  if (options_.same_cut_gradients) compare_cuts(tensors, wanted_[t], out);
  if (!out.str().empty()) report(t, mesh->rank(), out.str());
}

void ComparisonWithPlain::run_on_blocks(const MeshPtr& mesh) {
  for (size_t t = 0; t < cases_.size(); ++t) {
    try {
      compare_case(t, mesh);
    } catch (const std::exception& error) {
      // A CommError tells that another rank has thrown.
      if (dynamic_cast<const CommError*>(&error) == nullptr) Refusals::meet(mesh->rank(), mesh->size());
      if (!cases_[t].name.empty()) report(t, mesh->rank(), "it threw\n");
      throw;
    }
  }
}

void ComparisonWithPlain::add_failures(at::IntArrayRef mesh_shape) const {
  size_t reported = 0, last = cases_.size();
  for (const auto& [at, text] : reports_) {
    if (at.first == last || reported == 5) continue;
    last = at.first;
    ++reported;
    ADD_FAILURE() << cases_[at.first].name << (cases_[at.first].name.empty() ? "" : ": ") << "rank " << at.second
                  << " of mesh " << mesh_shape << " differs from plain tensors:\n"
                  << text;
  }
}

}  // namespace

void expect_each_same_as_plain(std::vector<int64_t> mesh_shape, const std::vector<NamedCase>& cases, Oracle options) {
  at::set_num_threads(1);  // small tensors; LibTorch's idle workers would spin beside the ranks
  ComparisonWithPlain comparison(cases, options);
  try {
    on_mesh(
        mesh_shape, [&](const MeshPtr& mesh) { comparison.run_on_blocks(mesh); }, options.fallback);
  } catch (const c10::Error& error) {
    const auto run_there = [&] { comparison.run_on(c10::Device(test_device())); };
    if (is_expected_on_devices(error.what_without_backtrace(), run_there)) return;
    comparison.add_failures(mesh_shape);
    throw;
  } catch (...) {
    comparison.add_failures(mesh_shape);
    throw;
  }
  comparison.add_failures(mesh_shape);
}

void expect_same_as_plain(std::vector<int64_t> mesh_shape, const std::vector<Input>& inputs, const Program& program,
                          Oracle options) {
  expect_each_same_as_plain(std::move(mesh_shape), {{"", inputs, program}}, options);
}

}  // namespace moonhalo::testing
