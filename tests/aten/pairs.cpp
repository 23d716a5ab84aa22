// SPDX-License-Identifier: Apache-2.0
#include "tests/aten/pairs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <sstream>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/dispatch/dispatch.h"

namespace moonhalo::testing {
namespace {

using c10::IValue;
using c10::TypeKind;

class Silent final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

std::vector<int64_t> shortened(std::vector<int64_t> list) {
  list.pop_back();
  return list;
}

std::vector<int64_t> longer(std::vector<int64_t> list) {
  list.push_back(list.back());
  return list;
}

std::vector<IValue> numbers_unlike(const IValue& v) {
  if (v.isInt()) {
    std::vector<IValue> others = {static_cast<double>(v.toInt()), v.toInt() + 1};
    if (v.toInt() == 0 || v.toInt() == 1) others.emplace_back(v.toInt() == 1);
    return others;
  }
  if (v.isDouble()) return {v.toDouble() / 2, static_cast<int64_t>(v.toDouble()) + 1, true};
  return {1, 0.5};
}

// Kernels do not check these.
bool is_one_of_few(const std::string& name) { return name.find("mode") != std::string::npos || name == "reduction"; }

// Other values for an argument, the likeliest to fit first.
std::vector<IValue> unlike(const c10::Argument& argument, const IValue& v, const List& tensors) {
  const bool optional = argument.real_type()->kind() == TypeKind::OptionalType;
  const c10::TypePtr type =
      optional ? argument.real_type()->expectRef<c10::OptionalType>().getElementType() : argument.real_type();
  std::vector<IValue> others;
  if (v.isNone()) {
    switch (type->kind()) {
      case TypeKind::TensorType:
        return {tensors[0]};
      case TypeKind::NumberType:
        return {2, 0.5};
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return {1, 0};
      case TypeKind::FloatType:
        return {0.5};
      case TypeKind::BoolType:
        return {true, false};
      case TypeKind::ScalarTypeType:
        return {static_cast<int64_t>(at::kFloat)};
      case TypeKind::ListType:
        if (type->expectRef<c10::ListType>().getElementType()->kind() == TypeKind::IntType ||
            type->expectRef<c10::ListType>().getElementType()->kind() == TypeKind::SymIntType)
          return {std::vector<int64_t>{1}, std::vector<int64_t>{0, 1}};
        return {};
      default:
        return {};
    }
  }
  if (optional) others.emplace_back();
  if (v.isBool() && type->kind() == TypeKind::BoolType) {
    others.emplace_back(!v.toBool());
  } else if (type->kind() == TypeKind::NumberType) {
    for (IValue& other : numbers_unlike(v)) others.push_back(std::move(other));
  } else if (type->kind() == TypeKind::ScalarTypeType) {
    others.emplace_back(static_cast<int64_t>(at::kFloat));
    others.emplace_back(static_cast<int64_t>(at::kComplexDouble));
  } else if (v.isInt() && is_one_of_few(argument.name())) {
    others.emplace_back((v.toInt() + 1) % 3);
  } else if (v.isInt()) {
    others.emplace_back(v.toInt() + 1);
    others.emplace_back(v.toInt() - 1);
  } else if (v.isDouble()) {
    others.emplace_back(v.toDouble() / 2);
  } else if (v.isIntList() && !v.toIntVector().empty()) {
    const std::vector<int64_t> list = v.toIntVector();
    if (list.size() > 1) others.emplace_back(shortened(list));
    others.emplace_back(longer(list));
    std::vector<int64_t> changed = list;
    ++changed.back();
    others.emplace_back(changed);
  } else if (v.isOptionalTensorList()) {
    const auto given = v.toOptionalTensorVector();
    c10::List<std::optional<at::Tensor>> moved;
    moved.push_back(std::nullopt);
    for (const auto& item : given) moved.push_back(item);
    others.emplace_back(std::move(moved));
  }
  return others;
}

// Not what says again what other arguments say: there LibTorch gives what its kernels happen to read.
bool may_differ(const Sample& sample, const c10::Argument& argument) {
  if (sample.op.base.starts_with("slow_conv3d") && argument.real_type()->kind() == TypeKind::ListType)
    return false;  // lists of three only
  if (sample.op.base.find("upsample") != std::string::npos && argument.name().starts_with("scales")) return false;
  return argument.name() != "kernel_size" || !sample.op.handle.schema().argumentIndexWithName("weight");
}

std::string written(const IValue& v) {
  std::ostringstream text;
  if (v.isTensor()) {
    text << v.toTensor().scalar_type() << v.toTensor().sizes();
  } else if (v.isTensorList() || v.isOptionalTensorList()) {
    text << "tensors";
  } else {
    text << v;
  }
  return text.str();
}

class Variations {
 public:
  explicit Variations(const Sample& first) : first_(first) {
    for (const at::Tensor& t : first.tensors) calls_.pool.push_back({t, calls_.pool.size()});
    add(first);
    const auto& arguments = first.op.handle.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite()) continue;
      if (!may_differ(first, arguments[i])) continue;
      for (const IValue& other : unlike(arguments[i], first.arguments[i], first.tensors)) change({{i, other}});
      if (i > 0) move_the_end(i - 1, i);
    }
    for (const at::ScalarType dtype : {at::kFloat, at::kLong, at::kComplexDouble}) cast(dtype);
  }

  // A call of the tables on tensors of the same shapes.
  void add_other(const Sample& other) {
    if (other.tensors.size() < first_.tensors.size()) return;
    for (size_t i = 0; i < other.tensors.size(); ++i) {
      const at::Tensor& model = first_.tensors[std::min(i, first_.tensors.size() - 1)];
      if (other.tensors[i].sizes() != model.sizes()) return;
    }
    add(other);
  }

  Calls take() { return std::move(calls_); }

 private:
  void change(const std::map<size_t, IValue>& changes) {
    std::vector<IValue> arguments = first_.arguments;
    std::string text = first_.text;
    for (const auto& [i, value] : changes) {
      arguments[i] = value;
      text += "; " + first_.op.handle.schema().arguments()[i].name() + "=" + written(value);
    }
    if (auto sample = with_arguments(first_, std::move(arguments), std::move(text))) add(*sample);
  }

  // [a], [b, b] and [a, b], [b]: the same numbers in a row.
  void move_the_end(size_t one, size_t other) {
    if (!first_.arguments[one].isIntList() || !first_.arguments[other].isIntList()) return;
    const auto left = first_.arguments[one].toIntVector(), right = first_.arguments[other].toIntVector();
    if (left.empty() || right.empty()) return;
    const int64_t a = left[0] + 1, b = left[0];
    for (const int64_t first : {a, b}) {
      change({{one, std::vector<int64_t>{first}}, {other, std::vector<int64_t>{b, b}}});
      change({{one, std::vector<int64_t>{first, b}}, {other, std::vector<int64_t>{b}}});
    }
  }

  void cast(at::ScalarType dtype) {
    std::map<size_t, IValue> changes;
    for (size_t i = 0; i < first_.arguments.size(); ++i) {
      const IValue& v = first_.arguments[i];
      if (!v.isTensor() || v.toTensor().scalar_type() != at::kDouble) continue;
      const at::Tensor wide = dtype == at::kLong ? v.toTensor().mul(1000) : v.toTensor();
      changes[i] = wide.to(dtype);
    }
    if (changes.empty()) return;
    change(changes);
    if (changes.size() > 1) change({*changes.begin()});
  }

  void add(const Sample& sample) {
    std::vector<size_t> own;
    for (size_t i = 0; i < sample.tensors.size(); ++i) own.push_back(place_of(sample.tensors[i], i));
    calls_.samples.push_back(sample);
    calls_.tensors.push_back(std::move(own));
  }

  size_t place_of(const at::Tensor& tensor, size_t position) {
    auto& pool = calls_.pool;
    const auto same = std::find_if(pool.begin(), pool.end(), [&](const auto& p) { return p.full.is_same(tensor); });
    if (same != pool.end()) return static_cast<size_t>(same - pool.begin());
    const auto last = first_.tensors.size() - 1;
    size_t like = std::min(position, last);
    for (size_t i = 0; i <= last && first_.tensors[like].sizes() != tensor.sizes(); ++i) like = i;
    TORCH_INTERNAL_ASSERT(first_.tensors[like].sizes() == tensor.sizes(), "no tensor of that shape");
    pool.push_back({tensor, like});
    return pool.size() - 1;
  }

  const Sample& first_;
  Calls calls_;
};

std::string name_of(const Sample& sample) { return sample.op.name + "(" + sample.text + ")"; }

at::Tensor held(const Calls::PoolTensor& tensor, const Way& way, const MeshPtr& mesh) {
  const Input& like = way.inputs[tensor.like];
  if (like.plain) return tensor.full.clone();
  std::vector<Placement> placements = like.placements;
  const bool exact = tensor.full.scalar_type() == like.full.scalar_type();
  for (Placement& p : placements) {
    if (p.is_partial() && !exact) p = replicate();  // addends that are rounded would differ
  }
  return shard_of(tensor.full, mesh, placements);
}

// Batch norm writes statistics that its schema says it reads.
List copies(const List& tensors) {
  List result;
  for (const at::Tensor& t : tensors) result.push_back(t.clone());
  return result;
}

at::Tensor whole(const at::Tensor& t) { return t.defined() && is_shard_tensor(t) ? full_tensor(t.detach()) : t; }

std::string compared(const List& actual, const List& expected, const Sample& sample) {
  if (actual.size() != expected.size())
    return std::to_string(actual.size()) + " results instead of " + std::to_string(expected.size());
  std::string text;
  for (size_t i = 0; i < actual.size(); ++i) {
    const std::string one = difference(whole(actual[i]), expected[i], sample.tolerance);
    if (!one.empty()) text += "result " + std::to_string(i) + ": " + one + "\n";
  }
  return text;
}

}  // namespace

Calls calls_like(const Sample& sample, const std::vector<Sample>& others) {
  Variations variations(sample);
  for (const Sample& other : others) {
    if (other.text != sample.text) variations.add_other(other);
  }
  return variations.take();
}

std::string pairs_problem(const Calls& calls, const Way& way, int* right, int* refused) {
  const at::NoGradGuard no_grad;
  const size_t count = calls.samples.size();
  std::vector<List> expected;
  for (const Sample& sample : calls.samples) expected.push_back(call(sample, copies(sample.tensors)));
  std::mutex mutex;
  std::string problem;
  std::array<std::vector<std::string>, 2> refusals;
  for (auto& by_call : refusals) by_call.resize(count);
  const auto report = [&](size_t j, bool back, const std::string& text) {
    const std::lock_guard lock(mutex);
    if (problem.empty()) problem = name_of(calls.samples[j]) + (back ? ", going back" : ", going forth") + ": " + text;
  };
  const auto make_call = [&](size_t j, bool back, const List& pool, int64_t rank) {
    const at::NoGradGuard none;
    List tensors;
    for (const size_t t : calls.tensors[j]) tensors.push_back(pool[t]);
    if (std::none_of(tensors.begin(), tensors.end(), is_shard_tensor)) return;
    try {
      const List results = call(calls.samples[j], copies(tensors));
      const std::string text = compared(results, expected[j], calls.samples[j]);
      if (!text.empty()) report(j, back, text);
    } catch (const CommError&) {
      throw;
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      if (!is_clear(text)) report(j, back, text);
      if (rank == 0) refusals[back][j] = text;
    }
  };
  try {
    on_mesh(
        way.mesh,
        [&](const MeshPtr& mesh) {
          static Silent silent;
          c10::WarningUtils::set_warning_handler(&silent);
          List pool;
          for (const auto& tensor : calls.pool) pool.push_back(held(tensor, way, mesh));
          for (const bool back : {false, true}) {
            Dispatch::of_this_thread().clear();
            for (size_t i = 0; i < count; ++i) make_call(back ? count - 1 - i : i, back, pool, mesh->rank());
          }
        },
        Fallback::kReplicate);
  } catch (const std::exception& error) {
    if (problem.empty()) problem = name_of(calls.samples[0]) + " and calls like it: " + error.what();
  }
  for (size_t j = 0; j < count; ++j) {
    if (problem.empty() && refusals[0][j] != refusals[1][j])
      problem = name_of(calls.samples[j]) + ": refused in one order only\nforth: " + refusals[0][j] +
                "\nback: " + refusals[1][j];
    *(refusals[0][j].empty() ? right : refused) += 1;
  }
  return problem.empty() ? "" : problem + "\n    on " + way.to_string();
}

}  // namespace moonhalo::testing
