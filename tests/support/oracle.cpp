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
    if (const Traffic more = call.traffic - (declared | Traffic::kInputs); more != Traffic::kNone)
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

// Kernels of a GPU round otherwise than those of the CPU, so plain tensors are on it, too. A program that ends in an
// error there (it has tensors of the host, or no kernel) is compared with the CPU, if blocks do not end in the same
// error.
static Outcome outcome_of_plain_tensors(const std::function<Outcome(c10::Device)>& program) {
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

void expect_each_same_as_plain(std::vector<int64_t> mesh_shape, const std::vector<NamedCase>& cases, Oracle options) {
  at::set_num_threads(1);  // small tensors; LibTorch's idle workers would spin beside the ranks
  std::vector<std::vector<bool>> wanted(cases.size());
  std::vector<Outcome> expected;
  const auto on_plain_tensors = [&](size_t t, c10::Device device) {
    std::vector<at::Tensor> plain;
    for (const Input& input : cases[t].inputs) {
      const at::Tensor moved = input.full.detach().to(device, input.full.scalar_type(), false, /*copy=*/true);
      plain.push_back(moved.requires_grad_(wanted[t][plain.size()]));
    }
    return run(plain, wanted[t], cases[t].program, options, [](const at::Tensor& like, int64_t seed) {
      return make_tensor(like.sizes(), seed, like.scalar_type()).to(like.device());
    });
  };
  for (size_t t = 0; t < cases.size(); ++t) {
    for (const Input& input : cases[t].inputs)
      wanted[t].push_back(input.grad && differentiable(input.full) && (options.backward || options.double_backward));
    expected.push_back(outcome_of_plain_tensors([&](c10::Device device) { return on_plain_tensors(t, device); }));
  }

  std::mutex mutex;
  std::map<std::pair<size_t, int64_t>, std::string> reports;  // by case and rank
  const auto report = [&](size_t number, int64_t rank, const std::string& text) {
    const std::lock_guard lock(mutex);
    reports[{number, rank}] = text;
  };
  const auto run_case = [&](size_t t, const MeshPtr& mesh) {
    std::ostringstream out;
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < cases[t].inputs.size(); ++i) {
      const Input& input = cases[t].inputs[i];
      at::Tensor tensor =
          input.plain ? on_device(input.full.detach().clone(), *mesh) : shard_of(input.full, mesh, input.placements);
      tensors.push_back(tensor.requires_grad_(wanted[t][i]));
    }

    std::vector<TraceRecord> calls;
    const Tracing tracing(&calls);
    const Outcome actual =
        run(tensors, wanted[t], cases[t].program, options, [&](const at::Tensor& like, int64_t seed) {
          const at::Tensor full = make_tensor(like.sizes(), seed, like.scalar_type());
          return is_shard_tensor(like) ? shard_of(full, mesh, without_partial(spec(like))->placements())
                                       : full.to(like.device());
        });

    compare_traffic(calls, out);
    compare("result", actual.results, expected[t].results, options.tolerance, out);
    compare("gradient", actual.gradients, expected[t].gradients, options.tolerance, out);
    compare("second gradient", actual.second_gradients, expected[t].second_gradients, options.tolerance, out);
    if (options.same_cut_gradients) compare_cuts(tensors, wanted[t], out);
    if (!out.str().empty()) report(t, mesh->rank(), out.str());
  };
  const auto on_plain_tensors_there = [&] {
    for (size_t t = 0; t < cases.size(); ++t) on_plain_tensors(t, c10::Device(test_device()));
  };
  const auto add_failures = [&] {
    size_t reported = 0, last = cases.size();
    for (const auto& [at, text] : reports) {
      if (at.first == last || reported == 5) continue;
      last = at.first;
      ++reported;
      ADD_FAILURE() << cases[at.first].name << (cases[at.first].name.empty() ? "" : ": ") << "rank " << at.second
                    << " of mesh " << at::IntArrayRef(mesh_shape) << " differs from plain tensors:\n"
                    << text;
    }
  };
  try {
    on_mesh(
        mesh_shape,
        [&](const MeshPtr& mesh) {
          for (size_t t = 0; t < cases.size(); ++t) {
            try {
              run_case(t, mesh);
            } catch (const std::exception& error) {
              // A CommError tells that another rank has thrown.
              if (dynamic_cast<const CommError*>(&error) == nullptr) Refusals::meet(mesh->rank(), mesh->size());
              if (!cases[t].name.empty()) report(t, mesh->rank(), "it threw\n");
              throw;
            }
          }
        },
        options.fallback);
  } catch (const c10::Error& error) {
    if (is_expected_on_devices(error.what_without_backtrace(), on_plain_tensors_there)) return;
    add_failures();
    throw;
  } catch (...) {
    add_failures();
    throw;
  }
  add_failures();
}

void expect_same_as_plain(std::vector<int64_t> mesh_shape, const std::vector<Input>& inputs, const Program& program,
                          Oracle options) {
  expect_each_same_as_plain(std::move(mesh_shape), {{"", inputs, program}}, options);
}

}  // namespace moonhalo::testing
