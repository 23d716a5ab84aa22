// SPDX-License-Identifier: Apache-2.0
#include "tests/aten/samples.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/launch/launch.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "tests/aten/notation.h"
#include "tests/support/test_device.h"

namespace moonhalo::testing {
namespace {

using c10::IValue;
using c10::TypeKind;

constexpr int64_t kMostPieces = 5;  // of a split

// Puts `tensors` into the places of the tensors of `arguments`, in order.
std::vector<IValue> with_tensors(const std::vector<IValue>& arguments, const List& tensors) {
  std::vector<IValue> result;
  size_t next = 0;
  for (const IValue& value : arguments) {
    if (value.isTensor()) {
      result.emplace_back(tensors[next++]);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (size_t i = value.toTensorList().size(); i > 0; --i) list.push_back(tensors[next++]);
      result.emplace_back(std::move(list));
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& item : value.toOptionalTensorVector())
        list.push_back(item ? std::optional(tensors[next++]) : std::nullopt);
      result.emplace_back(std::move(list));
    } else {
      result.push_back(value);
    }
  }
  return result;
}

void find_tensors(Sample& sample) {
  const auto& arguments = sample.op.handle.schema().arguments();
  sample.tensors.clear();
  sample.written.clear();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const IValue& value = sample.arguments[i];
    const bool written = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    List found;
    if (value.isTensor()) found.push_back(value.toTensor());
    if (value.isTensorList()) found = value.toTensorVector();
    if (value.isOptionalTensorList()) {
      for (const auto& item : value.toOptionalTensorVector()) {
        if (item) found.push_back(*item);
      }
    }
    for (const at::Tensor& t : found) {
      sample.tensors.push_back(t);
      sample.written.push_back(written);
    }
  }
}

void flatten(const IValue& value, List& into) {
  if (value.isTensor()) {
    into.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) into.push_back(t);
  } else if (value.isBool()) {
    into.push_back(at::scalar_tensor(value.toBool(), at::kBool));
  } else if (value.isScalar()) {
    into.push_back(at::scalar_tensor(value.toScalar(), at::kDouble));
  }
}

// A world of one rank in this thread, for random operators: their numbers do not depend on how many ranks there are.
const MeshPtr& mesh_of_one(c10::DeviceType type) {
  static thread_local const CommunicatorPtr world = make_world("threads", Launch{});
  static thread_local std::map<c10::DeviceType, MeshPtr> meshes;
  MeshPtr& mesh = meshes[type];
  if (!mesh) mesh = init_device_mesh(*world, type == at::kCPU ? "cpu" : test_device(), {1});
  return mesh;
}

List on_one_rank(const List& tensors) {
  List result;
  for (const at::Tensor& t : tensors)
    result.push_back(from_local(t, replicated(mesh_of_one(t.device().type()), t.sizes())));
  return result;
}

void call_operator(const c10::OperatorHandle& op, torch::jit::Stack& stack) { op.callBoxed(stack); }

}  // namespace

List call_by(const Sample& sample, const List& tensors,
             const std::function<void(const c10::OperatorHandle&, torch::jit::Stack&)>& callee) {
  List mine = tensors, written;
  for (size_t i = 0; i < mine.size(); ++i) {
    if (!sample.written[i]) continue;
    mine[i] = mine[i].clone();
    written.push_back(mine[i]);
  }
  torch::jit::Stack stack = with_tensors(sample.arguments, mine);
  callee(sample.op.handle, stack);
  List results;
  for (const IValue& value : stack) flatten(value, results);
  if (sample.op.handle.schema().returns().empty() || !sample.op.in_place)
    results.insert(results.end(), written.begin(), written.end());
  if (sample.values) return results;
  for (at::Tensor& t : results) t = at::zeros_like(t.detach());
  return results;
}

namespace {

bool differentiable(const at::Tensor& t) { return t.is_floating_point() || t.is_complex(); }

// Finds how far the plain call can be differentiated with respect to the tensors of `required`; throws what LibTorch
// throws where it cannot even be called so.
int derivatives_of(const Sample& sample, const std::vector<bool>& expected) {
  List leaves, tensors;
  for (size_t i = 0; i < sample.tensors.size(); ++i) {
    tensors.push_back(sample.tensors[i].detach().clone().requires_grad_(expected[i]));
    if (expected[i]) leaves.push_back(tensors.back());
  }
  if (leaves.empty()) return 0;
  const auto gradients = [&](const List& of, bool create_graph) {
    torch::autograd::variable_list roots, cotangents;
    for (const at::Tensor& t : of) {
      if (!t.defined() || !t.requires_grad()) continue;
      roots.push_back(t);
      cotangents.push_back(make_tensor(t.sizes(), 3, t.scalar_type()));
    }
    return roots.empty() ? List{} : torch::autograd::grad(roots, leaves, cotangents, true, create_graph, true);
  };
  int reached = 0;
  const List results = call(sample, tensors);
  try {
    List first = gradients(results, true);
    if (first.empty()) return 0;
    reached = 1;
    if (std::any_of(first.begin(), first.end(), [](const at::Tensor& t) { return t.defined() && t.requires_grad(); })) {
      gradients(first, false);
      reached = 2;
    }
  } catch (const c10::Error&) {
    return reached;
  }
  return reached;
}

void find_derivatives(Sample& sample) {
  sample.expected.assign(sample.tensors.size(), false);
  if (sample.op.out || !sample.values) return;
  std::vector<bool> all, first(sample.tensors.size(), false);
  for (const at::Tensor& t : sample.tensors) all.push_back(differentiable(t));
  const auto begin = std::find(all.begin(), all.end(), true);
  if (begin == all.end()) return;
  first[begin - all.begin()] = true;
  for (const auto& expected : {all, first}) {
    try {
      sample.derivatives = derivatives_of(sample, expected);
    } catch (const c10::Error&) {
      continue;  // "the derivative for 'target' is not implemented": ask for fewer
    }
    if (sample.derivatives > 0) {
      sample.expected = expected;
      return;
    }
  }
}

int64_t tensors_in(const IValue& value) {
  return value.isTensorList() ? static_cast<int64_t>(value.toTensorList().size()) : 0;
}

// out= tensors: LibTorch gives empty ones their shape; their dtypes are found by trying. A list has as many as the
// first list of tensors, or `pieces` (split).
bool make_outs(Sample& sample, int64_t pieces, std::string* problem) {
  static constexpr std::array kDtypes = {at::kDouble, at::kLong, at::kComplexDouble, at::kBool, at::kFloat, at::kInt};
  const auto& arguments = sample.op.handle.schema().arguments();
  std::vector<size_t> outs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].is_out() || !sample.arguments[i].isNone()) continue;
    outs.push_back(i);
  }
  if (outs.empty()) return true;  // the text gives them
  if (const int64_t most = tensors_in(sample.arguments[0])) pieces = most;
  const auto empty_like = [&](size_t i, at::ScalarType dtype) -> IValue {
    if (arguments[i].type()->kind() == TypeKind::TensorType) return at::empty({0}, dtype);
    c10::List<at::Tensor> list;
    for (int64_t n = 0; n < pieces; ++n) list.push_back(at::empty({0}, dtype));
    return list;
  };
  const auto filled_like = [&](const IValue& out) -> IValue {
    const auto fill = [](const at::Tensor& t) { return make_tensor(t.sizes(), 50, t.scalar_type()); };
    if (out.isTensor()) return fill(out.toTensor());
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : out.toTensorVector()) list.push_back(fill(t));
    return list;
  };
  int64_t ways = 1;
  for (size_t i = 0; i < outs.size(); ++i) ways *= kDtypes.size();
  for (int64_t way = 0; way < ways; ++way) {
    int64_t rest = way;
    for (const size_t i : outs) {
      sample.arguments[i] = empty_like(i, kDtypes[rest % kDtypes.size()]);
      rest /= kDtypes.size();
    }
    find_tensors(sample);
    try {
      torch::jit::Stack stack = sample.arguments;
      sample.op.handle.callBoxed(stack);
    } catch (const std::exception& error) {
      *problem = message_of(error);
      if (problem->find("Could not run") != std::string::npos) return false;  // no other dtype will help
      continue;
    }
    // Now of the right shape; what they hold must not matter.
    for (const size_t i : outs) sample.arguments[i] = filled_like(sample.arguments[i]);
    find_tensors(sample);
    return true;
  }
  return false;
}

// True if anything can be seen in the results.
bool telling(const List& results) {
  return std::any_of(results.begin(), results.end(), [](const at::Tensor& t) {
    return t.defined() && (t.numel() == 0 || t.isfinite().any().item<bool>());
  });
}

// Arguments are drawn without a look at them: matrices may be as ill-conditioned as chance makes them, which multiplies
// rounding in linear algebra; sums of float32 may cancel, so twice the contract's 1e-5; half and bfloat16 have 11 and 8
// bits.
double tolerance_for(const Sample& sample, const List& results) {
  double tolerance = sample.op.base.starts_with("linalg_") ? 1e-8 : 1e-10;
  for (const at::Tensor& t : results) {
    if (!t.defined()) continue;
    const at::ScalarType dtype = c10::toRealValueType(t.scalar_type());
    if (dtype == at::kFloat) tolerance = std::max(tolerance, 2e-5);
    if (dtype == at::kHalf || dtype == at::kBFloat16) tolerance = std::max(tolerance, 3e-2);
  }
  for (const at::Tensor& t : sample.tensors) {
    if (t.scalar_type() == at::kFloat) tolerance = std::max(tolerance, 2e-5);
    if (t.scalar_type() == at::kBFloat16) tolerance = std::max(tolerance, 3e-2);
  }
  return tolerance;
}

bool named_in(const Operator& op, std::string_view names) {
  std::istringstream words{std::string(names)};
  for (std::string word; words >> word;) {
    if (word == op.base || word == op.name || "aten::" + word == op.name) return true;
  }
  return false;
}

// Looks what the plain call gives; false when it throws, or nothing can be seen in it.
bool try_out(Sample& sample, std::string* problem) {
  find_tensors(sample);
  if (sample.tensors.empty()) {
    *problem = "no tensors";
    return false;
  }
  try {
    const at::NoGradGuard no_grad;
    const List once = call(sample, sample.tensors), again = call(sample, sample.tensors);
    if (!telling(once)) {
      *problem = "nothing but NaN comes out";
      return false;
    }
    sample.random = sample.values && sample.op.handle.hasTag(at::Tag::nondeterministic_seeded);
    for (size_t i = 0; i < once.size(); ++i)
      sample.random |= sample.values && !difference(once[i], again[i], 0).empty();
    sample.tolerance = tolerance_for(sample, once);
  } catch (const std::exception& error) {
    *problem = message_of(error);
    return false;
  }
  return true;
}

}  // namespace

List call(const Sample& sample, const List& tensors) {
  if (!sample.random) return call_by(sample, tensors, call_operator);
  manual_seed(11);
  if (std::any_of(tensors.begin(), tensors.end(), is_shard_tensor)) return call_by(sample, tensors, call_operator);
  List results = call_by(sample, on_one_rank(tensors), call_operator);
  for (at::Tensor& t : results) t = t.defined() && is_shard_tensor(t) ? full_tensor(t) : t;
  return results;
}

std::optional<Sample> with_arguments(Sample sample, std::vector<c10::IValue> arguments, std::string text) {
  sample.arguments = std::move(arguments);
  sample.text = std::move(text);
  sample.derivatives = 0;
  std::string unused;
  if (!try_out(sample, &unused)) return std::nullopt;
  return sample;
}

std::optional<Sample> make_sample(const Operator& op, const std::string& text, std::string* problem) {
  std::string unused;
  if (problem == nullptr) problem = &unused;
  auto arguments = read_arguments(op.handle.schema(), text, problem);
  if (!arguments) return std::nullopt;
  Sample sample{.op = op, .text = text, .arguments = std::move(*arguments)};
  sample.values = op.base.find("empty") == std::string::npos;
  if (op.out) {
    const auto given = sample.arguments;
    // Lists are written, not returned; only a split's length is not known.
    int64_t pieces = op.handle.schema().returns().empty() ? 1 : kMostPieces;
    for (; pieces <= kMostPieces && !make_outs(sample, pieces, problem); ++pieces) sample.arguments = given;
    if (pieces > kMostPieces) return std::nullopt;
  }
  if (!try_out(sample, problem)) return std::nullopt;
  find_derivatives(sample);
  return sample;
}

std::optional<Sample> with_empty_outs(const Sample& sample) {
  static const std::map<at::ScalarType, char> kKinds = {{at::kDouble, 'd'},        {at::kFloat, 'f'},
                                                        {at::kComplexDouble, 'c'}, {at::kBool, 'b'},
                                                        {at::kLong, 'l'},          {at::kInt, 'i'}};
  std::string text = sample.text;
  if (text.find("out=") != std::string::npos) return std::nullopt;  // as the sample gives them
  const auto& arguments = sample.op.handle.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].is_out()) continue;
    const IValue& given = sample.arguments[i];
    const List outs = given.isTensor() ? List{given.toTensor()} : given.toTensorVector();
    std::string empties;
    for (const at::Tensor& out : outs) {
      const auto kind = kKinds.find(out.scalar_type());
      if (kind == kKinds.end()) return std::nullopt;
      empties += std::string(empties.empty() ? "" : ", ") + kind->second + "[0]";
    }
    text += ", " + arguments[i].name() + "=" + (given.isTensor() ? empties : "{" + empties + "}");
  }
  return make_sample(sample.op, text);
}

std::vector<SampleLine> join_tables(std::initializer_list<std::span<const SampleLine>> tables) {
  std::vector<SampleLine> all;
  for (const std::span<const SampleLine> table : tables) all.insert(all.end(), table.begin(), table.end());
  return all;
}

std::vector<SampleLine> sample_lines() {
  return join_tables(
      {shape_samples(), reduction_samples(), index_samples(), layer_samples(), algebra_samples(), other_samples()});
}

std::vector<Sample> samples_of(const Operator& op, size_t most, std::string* problem) {
  static const std::vector<SampleLine> kLines = sample_lines();
  std::vector<Sample> samples;
  std::set<std::string> texts;
  const auto add = [&](const std::string& text) {
    if (samples.size() >= most || !texts.insert(text).second) return;
    if (auto sample = make_sample(op, text, problem)) samples.push_back(std::move(*sample));
  };
  for (const SampleLine& line : kLines) {
    if (named_in(op, line.names)) add(std::string(line.text));
  }
  // Some kernels check nothing (batch_norm_update_stats writes past short vectors), so nothing is guessed where a table
  // says what fits.
  if (texts.empty()) {
    for (Sample& sample : guessed_samples(op, most - samples.size())) {
      if (texts.insert(sample.text).second) samples.push_back(std::move(sample));
    }
  }
  return samples;
}

}  // namespace moonhalo::testing
