// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/operators/describe_operator.h"

#include <map>
#include <sstream>

#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/dispatch/operator_traits.h"
#include "moonhalo/engine/dispatch/pointwise_rule.h"
#include "moonhalo/scripting/operators/operators.h"

namespace moonhalo::scripting {

namespace {

/// The operators that the best known composites of LibTorch call: the dispatcher does not list them.
const std::vector<std::string>& parts_of(const c10::OperatorHandle& op) {
  using Parts = std::vector<std::string>;
  const Parts any = {"aten::_fft_c2c", "aten::_fft_r2c"}, from_real = {"aten::_fft_r2c"}, to_real = {"aten::_fft_c2r"};
  const Parts to_real_dims = {"aten::_fft_c2c", "aten::_fft_c2r"};
  static const std::map<std::string_view, Parts> parts = {
      {"aten::conv1d", {"aten::convolution"}},
      {"aten::conv2d", {"aten::convolution"}},
      {"aten::conv3d", {"aten::convolution"}},
      {"aten::conv_transpose1d", {"aten::convolution"}},
      {"aten::conv_transpose2d", {"aten::convolution"}},
      {"aten::conv_transpose3d", {"aten::convolution"}},
      {"aten::chunk", {"aten::split"}},
      {"aten::einsum", {"aten::bmm"}},
      {"aten::fft_fft", any},
      {"aten::fft_ifft", any},
      {"aten::fft_fft2", any},
      {"aten::fft_ifft2", any},
      {"aten::fft_fftn", any},
      {"aten::fft_ifftn", any},
      {"aten::fft_rfft", from_real},
      {"aten::fft_rfft2", from_real},
      {"aten::fft_rfftn", from_real},
      {"aten::fft_irfft", to_real},
      {"aten::fft_irfft2", to_real_dims},
      {"aten::fft_irfftn", to_real_dims},
  };
  static const Parts none;
  const auto found = parts.find(op.operator_name().name);
  return found == parts.end() ? none : found->second;
}

/// "made of other operators: ...", and what each of these sends.
std::string parts_text(const c10::OperatorHandle& op) {
  const std::vector<std::string>& parts = parts_of(op);
  std::string names = parts.empty() ? " (mh.op_trace lists them)" : "";
  for (const std::string& part : parts) names += (names.empty() ? ": " : ", ") + part;
  std::string text = "    shards: made of other operators" + names + "\n";
  for (const std::string& part : parts) {
    if (const Rule* rule = find_rule({part, ""}))
      text += "    moves:  " + to_string(rule->traffic) + " in " + part + ", once its tensors are cut as it needs\n";
  }
  return text;
}

/// True if this project makes the operator of others, by a kernel for ShardTensors.
bool made_of_others(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  return op.hasKernelForDispatchKey(kShardKey) && !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
}

std::string rule_text(const Rule& rule) {
  return "    shards: " + std::string(rule.supports) + " (" + file_of_rule(rule) +
         ")\n    moves:  " + to_string(rule.traffic) +
         ", once its tensors are cut as it needs\n    source: " + std::string(rule.source) + "\n";
}

/// The lines about an overload on blocks.
std::string on_blocks(const c10::OperatorHandle& op) {
  const OperatorFacts facts(op);
  const Rule* rule = facts.rule;
  if (!rule && facts.pointwise && !facts.random && !facts.functional) rule = pointwise_rule();
  if (facts.functional)
    return "    shards: calls " + c10::toString(facts.functional->operator_name()) + " and writes its results\n";
  if (rule) return rule_text(*rule);
  if (facts.composite_implicit || facts.decomposes || made_of_others(op)) return parts_text(op);
  return facts.random ? "    shards: refused: no rule for this random operator\n"
                      : "    shards: no rule: gathered, or refused (mh.set_fallback)\n";
}

}  // namespace

std::string file_of_rule(const Rule& rule) {
  const std::string path = rule.file;  // ops/FOLDER/FILE.cpp from here on
  const size_t at = path.rfind("/ops/");
  return at == std::string::npos ? path : path.substr(at + 1);
}

std::string describe_operator(const std::string& name) {
  const OperatorSet* set = find_operator(name);
  if (!set) return "";
  std::ostringstream text;
  for (const c10::OperatorHandle& op : set->overloads) text << op.schema() << "\n" << on_blocks(op);
  return text.str();
}

}  // namespace moonhalo::scripting
