// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/imported/script_trace.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <map>

#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo::jit {
namespace {

using TracedTensors = std::vector<at::Tensor>;

void refuse_shard_tensor(const at::Tensor& tensor, const std::string& what) {
  TORCH_CHECK_VALUE(
      !tensor.defined() || !is_shard_tensor(tensor), "jit.trace: ", what,
      " is a ShardTensor\n  fix   trace the model before it is divided, with a small plain tensor as example");
}

class TraceBuilder {
 public:
  torch::jit::Module build(const TracedModule& module, const std::string& path) {
    const auto before = made_.find(&module);
    if (before != made_.end()) return before->second;
    torch::jit::Module script(c10::QualifiedName("__torch__.moonhalo." + module.class_name), unit_,
                              /*shouldMangle=*/true);
    made_.emplace(&module, script);
    for (const auto& [name, tensor] : module.parameters) {
      refuse_shard_tensor(tensor, "'" + path + name + "'");
      script.register_parameter(name, tensor, /*is_buffer=*/false);
    }
    for (const auto& [name, tensor] : module.buffers) {
      refuse_shard_tensor(tensor, "'" + path + name + "'");
      script.register_parameter(name, tensor, /*is_buffer=*/true);
    }
    for (const auto& [name, child] : module.children) {
      script.register_module(name, build(*child, path + name + "."));
    }
    script.register_attribute("training", c10::BoolType::get(), false);
    return script;
  }

 private:
  std::shared_ptr<torch::jit::CompilationUnit> unit_ = std::make_shared<torch::jit::CompilationUnit>();
  std::map<const TracedModule*, torch::jit::Module> made_;
};

void refuse_operators(const torch::jit::Block& block) {
  for (const torch::jit::Node* node : block.nodes()) {
    const std::string kind = node->kind().toQualString();
    TORCH_CHECK_NOT_IMPLEMENTED(
        kind.starts_with("aten::") || kind.starts_with("prim::"), "jit.trace: ", kind,
        " is an operator of Moonhalo, which PyTorch does not have\n  fix   use operators of PyTorch in ",
        "models that Python shall run");
    for (const torch::jit::Block* inner : node->blocks()) refuse_operators(*inner);
  }
}

c10::IValue packed_results(const TracedTensors& results) {
  TORCH_CHECK_TYPE(!results.empty(), "jit.trace: forward gives no tensor");
  if (results.size() == 1) return results[0];
  return c10::ivalue::Tuple::create(std::vector<c10::IValue>(results.begin(), results.end()));
}

TracedTensors unpacked_results(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  TracedTensors results;
  for (const c10::IValue& one : value.toTupleRef().elements()) results.push_back(one.toTensor());
  return results;
}

void check_trace(torch::jit::Module& script, const TracedTensors& inputs, const TracedTensors& expected) {
  const torch::jit::GraphOptimizerEnabledGuard unoptimized(false);
  const at::NoGradGuard no_grad;
  const TracedTensors actual = unpacked_results(script.forward(std::vector<c10::IValue>(inputs.begin(), inputs.end())));
  for (size_t i = 0; i < expected.size(); ++i) {
    const bool same = actual[i].sizes() == expected[i].sizes() &&
                      at::allclose(actual[i], expected[i], 1e-5, 1e-8, /*equal_nan=*/true);
    TORCH_CHECK_VALUE(same, "jit.trace: result ", i + 1,
                      " of the traced model differs from the model's on another input\n",
                      "  have  forward reads values of tensors (item, a comparison), or draws random numbers",
                      "\n  fix   give these as tensors, or write the model in Python and use torch.jit.script");
  }
}

}  // namespace

torch::jit::Module trace(const TracedModule& root, const std::vector<at::Tensor>& inputs,
                         const std::vector<at::Tensor>& check,
                         const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& forward) {
  for (size_t i = 0; i < inputs.size(); ++i) refuse_shard_tensor(inputs[i], "input " + std::to_string(i + 1));
  torch::jit::Module script = TraceBuilder().build(root, "");
  const at::NoGradGuard no_grad;
  const TracedTensors expected = forward(check);
  const auto traced_forward = [&](torch::jit::Stack stack) -> torch::jit::Stack {
    TracedTensors given;
    for (const c10::IValue& value : stack) given.push_back(value.toTensor());
    return {packed_results(forward(given))};
  };
  const auto no_name = [](const torch::autograd::Variable&) { return std::string(); };
  const auto traced =
      torch::jit::tracer::trace(torch::jit::Stack(inputs.begin(), inputs.end()), traced_forward, no_name,
                                /*strict=*/true, /*force_outplace=*/false, &script);
  refuse_operators(*traced.first->graph->block());
  torch::jit::Function* method = script._ivalue()->compilation_unit()->create_function(
      c10::QualifiedName(*script.type()->name(), "forward"), traced.first->graph);
  script.type()->addMethod(method);
  check_trace(script, check, expected);
  return script;
}

}  // namespace moonhalo::jit
