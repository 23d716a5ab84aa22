// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/imported/exported_arguments.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>

#include <limits>
#include <map>
#include <nlohmann/json.hpp>

namespace moonhalo::exported {
namespace {

using c10::IValue;
using c10::TypeKind;
using nlohmann::json;

const c10::Type* type_without_optional(const c10::Argument* required) {
  if (required == nullptr) return nullptr;
  const c10::Type& type = *required->type();
  return type.kind() == TypeKind::OptionalType ? type.containedType(0).get() : &type;
}

bool wants(const c10::Argument* required, TypeKind kind) {
  const c10::Type* type = type_without_optional(required);
  return type != nullptr && type->kind() == kind;
}

bool wants_list_of(const c10::Argument* required, TypeKind kind) {
  return wants(required, TypeKind::ListType) && type_without_optional(required)->containedType(0)->kind() == kind;
}

Argument constant(IValue value) {
  Argument argument;
  argument.constant = std::move(value);
  return argument;
}

// A number where the schema may want a tensor, a float, or a list of equal numbers.
Argument number_argument(const IValue& value, const c10::Argument* required) {
  if (wants(required, TypeKind::TensorType)) {
    at::Tensor tensor = at::scalar_to_tensor(value.toScalar());
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    return constant(tensor);
  }
  if (wants(required, TypeKind::FloatType) && value.isInt()) return constant(static_cast<double>(value.toInt()));
  if (wants(required, TypeKind::ListType)) {
    const int64_t copies = std::max<int64_t>(required->N().value_or(1), 1);
    if (value.isInt()) return constant(std::vector<int64_t>(copies, value.toInt()));
    if (value.isDouble()) return constant(std::vector<double>(copies, value.toDouble()));
  }
  return constant(value);
}

Argument slot_argument(int slot, const c10::Argument* required) {
  Argument argument;
  argument.kind = wants(required, TypeKind::TensorType) ? Argument::Kind::kNumberAsTensor : Argument::Kind::kSlot;
  argument.slot = slot;
  argument.as_double = wants(required, TypeKind::FloatType);
  if (wants(required, TypeKind::ListType)) {
    argument.kind = Argument::Kind::kInts;
    argument.elements.assign(std::max(required->N().value_or(1), 1), {slot, IValue()});
  }
  return argument;
}

// {"as_name": "sym_size"}, or {"as_int": 3}.
Argument symbolic_argument(const json& given, const c10::Argument* required, const SlotNames& names) {
  if (given.contains("as_name")) return slot_argument(names.use(given.at("as_name").get<std::string>()), required);
  if (given.contains("as_int")) return number_argument(given.at("as_int").get<int64_t>(), required);
  if (given.contains("as_float")) return number_argument(given.at("as_float").get<double>(), required);
  return number_argument(given.at("as_bool").get<bool>(), required);
}

Argument symbolic_list(const json& given, Argument::Kind kind, const SlotNames& names) {
  Argument argument;
  argument.kind = kind;
  for (const json& one : given) {
    const Argument element = symbolic_argument(one, nullptr, names);
    argument.elements.emplace_back(element.slot, element.constant);
  }
  return argument;
}

Argument tensor_list(const json& given, const c10::Argument* required, const SlotNames& names) {
  Argument argument;
  argument.kind =
      wants_list_of(required, TypeKind::OptionalType) ? Argument::Kind::kOptionalTensors : Argument::Kind::kTensors;
  for (const json& one : given) {
    if (one.contains("as_none")) {
      argument.kind = Argument::Kind::kOptionalTensors;
      argument.elements.emplace_back(kNoSlot, IValue());
      continue;
    }
    const json& tensor = one.contains("as_tensor") ? one.at("as_tensor") : one;
    argument.elements.emplace_back(names.use(tensor.at("name").get<std::string>()), IValue());
  }
  return argument;
}

IValue memory_format(int64_t number) {
  static constexpr std::array kFormats = {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast,
                                          at::MemoryFormat::ChannelsLast3d, at::MemoryFormat::Preserve};
  TORCH_CHECK_VALUE(number >= 1 && number <= 4, "number ", number, " is not a memory format");
  return static_cast<int64_t>(kFormats[number - 1]);
}

template <class Number>
IValue number_list(const json& given, const c10::Argument* required) {
  if (wants_list_of(required, TypeKind::FloatType)) return given.get<std::vector<double>>();
  return given.get<std::vector<Number>>();
}

// JSON has no infinities and no NaN: torch.export writes them as strings.
double float_of(const json& value) {
  static const std::map<std::string, double> words = {{"Infinity", std::numeric_limits<double>::infinity()},
                                                      {"-Infinity", -std::numeric_limits<double>::infinity()},
                                                      {"NaN", std::numeric_limits<double>::quiet_NaN()}};
  if (!value.is_string()) return value.get<double>();
  const auto found = words.find(value.get<std::string>());
  TORCH_CHECK_VALUE(found != words.end(), value.dump(), " is not a number");
  return found->second;
}

std::optional<Argument> read_plain(const std::string& kind, const json& value, const c10::Argument* required) {
  if (kind == "as_none") return constant(IValue());
  if (kind == "as_int") return number_argument(value.get<int64_t>(), required);
  if (kind == "as_bool") return number_argument(value.get<bool>(), required);
  if (kind == "as_float") return number_argument(float_of(value), required);
  if (kind == "as_complex") {
    return number_argument(IValue(c10::complex<double>(value.at("real").get<double>(), value.at("imag").get<double>())),
                           required);
  }
  if (kind == "as_string") return constant(value.get<std::string>());
  if (kind == "as_ints") return constant(number_list<int64_t>(value, required));
  if (kind == "as_floats") return constant(value.get<std::vector<double>>());
  if (kind == "as_bools") {
    c10::List<bool> list;
    for (const json& one : value) list.push_back(one.get<bool>());
    return constant(list);
  }
  if (kind == "as_scalar_type") return constant(static_cast<int64_t>(scalar_type(value.get<int64_t>())));
  if (kind == "as_memory_format") return constant(memory_format(value.get<int64_t>()));
  return std::nullopt;
}

const json& children_of(const json& tree) {
  const json& children = tree.at("children_spec");
  TORCH_CHECK_VALUE(children.is_array(), "children_spec is ", children.dump());
  return children;
}

bool is_dict(const json& tree) {
  const json& type = tree.at("type");
  return type == "builtins.dict" || type == "collections.OrderedDict";
}

size_t leaves_of(const json& tree) {
  const json& type = tree.at("type");
  const json& children = children_of(tree);
  TORCH_CHECK_VALUE(type.is_string() || (type.is_null() && children.empty()), "a tree of arguments has the type ",
                    type.dump());
  if (type.is_null()) return 1;
  if (is_dict(tree)) {
    const json keys = json::parse(tree.at("context").get<std::string>());
    TORCH_CHECK_VALUE(keys.is_array() && keys.size() == children.size(), "a dict of ", children.size(),
                      " has the keys ", keys.dump());
  }
  size_t count = 0;
  for (const json& child : children) count += leaves_of(child);
  return count;
}

}  // namespace

std::pair<std::string, const json&> only_entry(const json& given) {
  TORCH_CHECK_VALUE(given.is_object() && given.size() == 1, "an object with one entry is ", given.dump());
  return {given.begin().key(), given.begin().value()};
}

size_t count_leaves(const std::string& tree_spec, bool is_call) {
  const json spec = json::parse(tree_spec);
  TORCH_CHECK_VALUE(spec.is_array() && spec.size() == 2, "a tree of arguments is ", spec.dump());
  const json& tree = spec.at(1);
  if (is_call) {
    const json& both = children_of(tree);
    TORCH_CHECK_VALUE(both.size() == 2 && both.at(0).at("type").is_string() && is_dict(both.at(1)),
                      "the arguments are not a tuple and a dict: ", spec.dump());
  }
  return leaves_of(tree);
}

int SlotNames::define(const std::string& name) {
  if (name.empty()) return kNoSlot;
  return slots_[name] = count_++;
}

int SlotNames::use(const std::string& name) const {
  const auto found = slots_.find(name);
  TORCH_CHECK_VALUE(found != slots_.end(), "the program uses '", name, "' before it is computed");
  return found->second;
}

Argument read_argument(const json& given, const c10::Argument* required, const SlotNames& names,
                       const c10::Device& device) {
  const auto& [kind, value] = only_entry(given);
  if (auto plain = read_plain(kind, value, required)) return *std::move(plain);
  if (kind == "as_tensor") {
    Argument argument;
    argument.kind = Argument::Kind::kSlot;
    argument.slot = names.use(value.at("name").get<std::string>());
    return argument;
  }
  if (kind == "as_optional_tensor") return read_argument(value, required, names, device);
  if (kind == "as_tensors" || kind == "as_optional_tensors") return tensor_list(value, required, names);
  if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool")
    return symbolic_argument(value, required, names);
  if (kind == "as_sym_ints") return symbolic_list(value, Argument::Kind::kInts, names);
  if (kind == "as_sym_floats") return symbolic_list(value, Argument::Kind::kFloats, names);
  if (kind == "as_sym_bools") return symbolic_list(value, Argument::Kind::kBools, names);
  if (kind == "as_device") return constant(device);
  if (kind == "as_layout") {
    TORCH_CHECK_NOT_IMPLEMENTED(value.get<int64_t>() == 7, "sparse layouts in exported programs");
    return constant(static_cast<int64_t>(at::kStrided));
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "an argument of the kind '", kind, "' is not read");
}

}  // namespace moonhalo::exported
