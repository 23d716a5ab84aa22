// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/checkpoint/optimizer_state.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <type_traits>

#include "moonhalo/engine/model/optimizer_fields.h"

namespace moonhalo::io {
namespace {

namespace to = torch::optim;
using nlohmann::json;
using Betas = std::tuple<double, double>;

/// Calls visit.operator()<Options, State>(name) for the optimizer's kind.
template <class Visit>
void with_kind(const to::Optimizer& optimizer, const char* who, const Visit& visit) {
  if (dynamic_cast<const to::SGD*>(&optimizer))
    return visit.template operator()<to::SGDOptions, to::SGDParamState>("SGD");
  if (dynamic_cast<const to::Adam*>(&optimizer))
    return visit.template operator()<to::AdamOptions, to::AdamParamState>("Adam");
  if (dynamic_cast<const to::AdamW*>(&optimizer))
    return visit.template operator()<to::AdamWOptions, to::AdamWParamState>("AdamW");
  if (dynamic_cast<const to::RMSprop*>(&optimizer))
    return visit.template operator()<to::RMSpropOptions, to::RMSpropParamState>("RMSprop");
  if (dynamic_cast<const to::Adagrad*>(&optimizer))
    return visit.template operator()<to::AdagradOptions, to::AdagradParamState>("Adagrad");
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, who, ": the state of this optimizer is not saved\n  have  ",
      dynamic_cast<const to::LBFGS*>(&optimizer) ? "LBFGS" : "an optimizer that is not LibTorch's",
      "\n  fix   save the module alone, and make the optimizer again");
}

json pack_field(double value) { return pack_number(value); }
json pack_field(const Betas& value) { return {std::get<0>(value), std::get<1>(value)}; }
template <class T>
json pack_field(const T& value) {
  return value;
}

void check(bool good, const std::string& what, const char* required) {
  TORCH_CHECK_VALUE(good, "load_state_dict: ", what, " is damaged: expected ", required,
                    "\n  fix   load an older checkpoint");
}

void unpack_field(const json& saved, const std::string& what, double& value) {
  check(saved.is_number() || saved.is_object(), what, "a number");
  value = unpack_number(saved);
}
void unpack_field(const json& saved, const std::string& what, int64_t& value) {
  check(saved.is_number_integer(), what, "an integer");
  value = saved.get<int64_t>();
}
void unpack_field(const json& saved, const std::string& what, bool& value) {
  check(saved.is_boolean(), what, "true or false");
  value = saved.get<bool>();
}
void unpack_field(const json& saved, const std::string& what, Betas& value) {
  check(saved.is_array() && saved.size() == 2 && saved[0].is_number() && saved[1].is_number(), what, "two numbers");
  value = {saved[0].get<double>(), saved[1].get<double>()};
}

const json kNothing = json::object();

/// Tables that are empty may be written as lists.
const json& table_of(const json& value, const std::string& key) {
  if (!value.is_object()) return kNothing;
  const auto found = value.find(key);
  return found == value.end() || !found->is_object() ? kNothing : *found;
}

std::string tensor_name(const json& value) {
  return value.is_object() && value.contains("$tensor") && value["$tensor"].is_string()
             ? value["$tensor"].get<std::string>()
             : std::string();
}

/// Reads one parameter's state; `make(name, saved)` gives the tensor for what was saved.
template <class State>
std::unique_ptr<State> read_state(
    const json& saved, const std::string& parameter, const DescribeSaved& describe,
    const std::function<at::Tensor(const std::string& name, const at::Tensor& saved)>& make) {
  auto state = std::make_unique<State>();
  std::set<std::string> known;
  visit_fields(*state, [&]<class T>(const char* key, T& value) {
    known.insert(key);
    const std::string what = std::string("'") + key + "' of '" + parameter + "'";
    if constexpr (std::is_same_v<T, at::Tensor>) {
      if (!saved.contains(key)) return;
      const std::string name = tensor_name(saved[key]);
      const at::Tensor described = describe(name);
      check(described.defined(), what, "a tensor that is there");
      value = make(name, described);
    } else {
      check(saved.contains(key), what, "a number that is there");
      unpack_field(saved[key], what, value);
    }
  });
  for (const auto& [key, value] : saved.items())
    check(known.contains(key), "'" + key + "' of '" + parameter + "'", "nothing");
  return state;
}

template <class Options>
void read_options(const json& saved, Options& options) {
  visit_fields(options, [&](const char* key, auto& value) {
    if (saved.contains(key)) unpack_field(saved[key], std::string("the option '") + key + "'", value);
  });
}

/// Names as they were saved, by position.
ParameterNames saved_names(const json& saved) {
  ParameterNames names;
  for (const json& group : saved.at("param_groups")) {
    if (!group.is_object() || !group.contains("params")) continue;
    for (const json& name : group["params"]) {
      if (name.is_string()) names.push_back(name.get<std::string>());
    }
  }
  return names;
}

/// Strangers ("#3") are found by their position.
ParameterNames required_names(const ParameterNames& names, const json& saved) {
  const bool strangers =
      std::all_of(names.begin(), names.end(), [](const std::string& name) { return name[0] == '#'; });
  return strangers ? saved_names(saved) : names;
}

/// The saved group of each of the optimizer's groups: the one that has its parameters, in whatever order groups are.
std::vector<const json*> groups_by_name(const to::Optimizer& optimizer, const ParameterNames& names,
                                        const json& saved) {
  const auto options_of = [](json group) {
    group.erase("params");
    return group;
  };
  std::map<std::string, const json*> group_of;
  for (const json& group : saved) {
    for (const json& name : group.value("params", json::array())) {
      if (name.is_string()) group_of[name.get<std::string>()] = &group;
    }
  }
  std::vector<const json*> groups;
  size_t position = 0;
  for (const to::OptimizerParamGroup& group : optimizer.param_groups()) {
    const json* from = nullptr;
    for (size_t i = 0; i < group.params().size(); ++i) {
      const auto found = group_of.find(names[position++]);
      if (found == group_of.end()) continue;
      if (from == nullptr) from = found->second;
      TORCH_CHECK_VALUE(from == found->second || options_of(*from) == options_of(*found->second),
                        "load_state_dict: group ", groups.size() + 1,
                        " of the optimizer has parameters of saved groups whose options differ, '", found->first,
                        "' one of them", "\n  fix   make the groups that were saved");
    }
    groups.push_back(from != nullptr ? from : &saved.at(groups.size()));
  }
  return groups;
}

}  // namespace

json pack_number(double value) {
  if (std::isfinite(value)) return value;
  return {{"$number", std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"}};
}

double unpack_number(const json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value.is_object() && value.contains("$number") && value["$number"].is_string()
                               ? value["$number"].get<std::string>()
                               : std::string();
  check(text == "nan" || text == "inf" || text == "-inf", "a number", "nan, inf or -inf");
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  return text == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
}

json pack_optimizer(to::Optimizer& optimizer, const ParameterNames& names, NamedTensors& tensors) {
  json packed = {{"by", "name"}, {"param_groups", json::array()}, {"state", json::object()}};
  with_kind(optimizer, "checkpoint.save", [&]<class Options, class State>(const char* kind) {
    packed["name"] = kind;
    size_t position = 0;
    for (to::OptimizerParamGroup& group : optimizer.param_groups()) {
      json options = json::object();
      visit_fields(static_cast<Options&>(group.options()),
                   [&](const char* key, const auto& value) { options[key] = pack_field(value); });
      options["params"] = json::array();
      for (const at::Tensor& parameter : group.params()) {
        const std::string& name = names[position++];
        options["params"].push_back(name);
        json& fields = packed["state"][name] = json::object();
        const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
        if (state == optimizer.state().end()) continue;
        visit_fields(static_cast<State&>(*state->second), [&]<class T>(const char* key, const T& value) {
          if constexpr (std::is_same_v<T, at::Tensor>) {
            if (!value.defined()) return;
            tensors.emplace_back(std::string(key) + "/" + name, value.detach());
            fields[key] = {{"$tensor", tensors.back().first}};
          } else {
            fields[key] = pack_field(value);
          }
        });
      }
      packed["param_groups"].push_back(std::move(options));
    }
  });
  return packed;
}

void check_optimizer(to::Optimizer& optimizer, const ParameterNames& names, const json& saved,
                     const DescribeSaved& describe) {
  with_kind(optimizer, "checkpoint.load", [&]<class Options, class State>(const char* kind) {
    check(saved.is_object() && saved.contains("param_groups") && saved["param_groups"].is_array(), "the state",
          "groups");
    TORCH_CHECK_VALUE(saved.value("name", "") == kind, "load_state_dict: the state is that of '",
                      saved.value("name", ""), "', the optimizer is ", kind);
    TORCH_CHECK_VALUE(saved.value("by", "") == "name",
                      "load_state_dict: the state is by position, of format 1\n  fix   load and save it by a "
                      "script");
    const json& groups = saved["param_groups"];
    TORCH_CHECK_VALUE(groups.size() == optimizer.param_groups().size(), "load_state_dict: the state is of ",
                      groups.size(), " parameter groups, the optimizer has ", optimizer.param_groups().size());
    for (const json& group : groups) {
      Options options = static_cast<const Options&>(optimizer.param_groups()[0].options());
      read_options(group, options);
      std::set<std::string> known{"params"};
      visit_fields(options, [&](const char* key, const auto&) { known.insert(key); });
      for (const auto& [key, value] : group.items()) {
        TORCH_CHECK_VALUE(known.contains(key), "load_state_dict: the optimizer has no option '", key, "'\n  have  ",
                          kind, ", saved with ", key, " = ", value.dump(),
                          "\n  fix   load it in Python, which saved it");
      }
    }
    const ParameterNames required = required_names(names, saved);
    TORCH_CHECK_VALUE(required.size() == names.size(), "load_state_dict: the state is of ", required.size(),
                      " parameters, the optimizer has ", names.size());
    std::set<std::string> left;
    for (const std::string& name : saved_names(saved)) left.insert(name);
    size_t position = 0;
    for (to::OptimizerParamGroup& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        const std::string& name = required[position++];
        TORCH_CHECK_VALUE(left.erase(name) == 1, "load_state_dict: no state of '", name,
                          "'\n  fix   load it together with the modules saved beside it");
        const json& fields = table_of(table_of(saved, "state"), name);
        if (fields.empty()) continue;
        read_state<State>(fields, name, describe, [&](const std::string& tensor, const at::Tensor& described) {
          TORCH_CHECK_VALUE(described.sizes() == parameter.sizes(), "load_state_dict: '", tensor, "' has shape ",
                            described.sizes(), ", its parameter ", parameter.sizes());
          return at::Tensor();
        });
      }
    }
    groups_by_name(optimizer, required, groups);
    TORCH_CHECK_VALUE(left.empty(), "load_state_dict: the optimizer has no '", *left.begin(),
                      "'\n  fix   load it together with the modules saved beside it");
  });
}

void unpack_optimizer(to::Optimizer& optimizer, const ParameterNames& names, const json& saved,
                      const DescribeSaved& describe,
                      const std::function<void(const std::string& name, const at::Tensor& target)>& read) {
  with_kind(optimizer, "checkpoint.load", [&]<class Options, class State>(const char*) {
    const at::NoGradGuard no_grad;
    const ParameterNames required = required_names(names, saved);
    const std::vector<const json*> groups = groups_by_name(optimizer, required, saved["param_groups"]);
    size_t position = 0, number = 0;
    for (to::OptimizerParamGroup& group : optimizer.param_groups()) {
      read_options(*groups[number++], static_cast<Options&>(group.options()));
      for (const at::Tensor& parameter : group.params()) {
        const std::string& name = required[position++];
        const json& fields = table_of(table_of(saved, "state"), name);
        if (fields.empty()) {
          optimizer.state().erase(parameter.unsafeGetTensorImpl());
          continue;
        }
        optimizer.state()[parameter.unsafeGetTensorImpl()] =
            read_state<State>(fields, name, describe, [&](const std::string& tensor, const at::Tensor& described) {
              const at::Tensor made =
                  at::empty_like(parameter.detach(), parameter.options().dtype(described.dtype()).requires_grad(false));
              read(tensor, made);
              return made;
            });
      }
    }
  });
}

}  // namespace moonhalo::io
