// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/imported/exported_module.h"

#include <c10/util/Exception.h>

#include "moonhalo/engine/imported/exported_program.h"

namespace moonhalo::exported {

struct ExportedModule::State {
  struct Link {
    torch::nn::Module* module;  // a part, which the module holds
    std::string name;
    size_t index;  // among the program's tensors
  };
  State(const std::string& path, std::optional<c10::Device> device) : program(path, device) {}
  ExportedProgram program;
  std::vector<Link> links = {};
};

namespace {

/// A module inside of an exported program.
class ExportedPart : public torch::nn::Module, public detail::HasRegisteredTensorsAlone {
 public:
  using torch::nn::Module::Module;
};

std::string class_of(const ExportedProgram& program, const std::string& path) {
  const auto found = program.classes().find(path);
  return found == program.classes().end() ? "Module" : found->second;
}

// The module that holds the tensor `name`, made if need be.
torch::nn::Module& part_of(torch::nn::Module& root, const ExportedProgram& program, const std::string& name) {
  torch::nn::Module* module = &root;
  size_t begin = 0;
  for (size_t dot = name.find('.'); dot != std::string::npos; begin = dot + 1, dot = name.find('.', begin)) {
    const std::string child = name.substr(begin, dot - begin);
    const auto children = module->named_children();
    const auto* found = children.find(child);
    module =
        found != nullptr
            ? found->get()
            : module->register_module(child, std::make_shared<ExportedPart>(class_of(program, name.substr(0, dot))))
                  .get();
  }
  return *module;
}

}  // namespace

ExportedModule::ExportedModule(std::unique_ptr<State> state)
    : Module(class_of(state->program, "")), state_(std::move(state)) {
  const std::vector<ProgramTensor>& tensors = state_->program.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].kind == ProgramTensor::Kind::kConstant) continue;
    torch::nn::Module& part = part_of(*this, state_->program, tensors[i].name);
    const std::string name = tensors[i].name.substr(tensors[i].name.rfind('.') + 1);
    const bool is_parameter = tensors[i].kind == ProgramTensor::Kind::kParameter;
    if (is_parameter) {
      part.register_parameter(name, tensors[i].tensor, tensors[i].tensor.requires_grad());
    } else {
      part.register_buffer(name, tensors[i].tensor);
    }
    state_->links.push_back({&part, name, i});
  }
}
ExportedModule::~ExportedModule() = default;

at::Tensor ExportedModule::forward(const at::Tensor& input) {
  const std::vector<c10::IValue> results = run({input});
  TORCH_CHECK_TYPE(results.size() == 1 && results[0].isTensor(), name(), ": the program gives ", results.size(),
                   " results, not one tensor\n  fix   call run({x})");
  return results[0].toTensor();
}

std::vector<c10::IValue> ExportedModule::run(const std::vector<c10::IValue>& inputs) {
  std::vector<ProgramTensor>& tensors = state_->program.tensors();
  for (const State::Link& link : state_->links) {
    ProgramTensor& tensor = tensors[link.index];
    const bool is_parameter = tensor.kind == ProgramTensor::Kind::kParameter;
    tensor.tensor = detail::registered_tensor(*link.module, link.name, is_parameter);
  }
  return state_->program.run(inputs);
}

void ExportedModule::train(bool) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, name(),
                              ": an exported program keeps the mode in which Python exported it\n  fix   ",
                              "export it again, after net.train() or net.eval(), or save it as TorchScript");
}

std::shared_ptr<ExportedModule> load(const std::string& path, std::optional<c10::Device> device) {
  return std::make_shared<ExportedModule>(std::make_unique<ExportedModule::State>(path, device));
}

}  // namespace moonhalo::exported
