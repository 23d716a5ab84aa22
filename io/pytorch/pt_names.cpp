// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/pytorch/pt_names.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <unordered_map>

namespace moonhalo::io {
namespace {

constexpr int kDeepestValue = 200;
constexpr size_t kLongest = 60;

bool is_container(const PickleValue& value) {
  return value.kind == PickleKind::kList || value.kind == PickleKind::kTuple || value.kind == PickleKind::kSet ||
         value.kind == PickleKind::kDict;
}

std::string quoted(std::string_view text) {
  std::string shown = "'";
  for (const char letter : text.substr(0, kLongest)) shown += static_cast<unsigned char>(letter) < 0x20 ? ' ' : letter;
  return shown + (text.size() > kLongest ? "...'" : "'");
}

class Walk {
 public:
  Walk(const std::string& what, const Pickle& pickle) : what_(what), pickle_(pickle) {}

  void visit(const std::string& name, const PickleValue& value) {
    TORCH_CHECK_VALUE(++depth_ <= kDeepestValue, what_, ": its values are nested deeper than ", kDeepestValue,
                      "\n  have  ", name.substr(0, 200), "\n  fix   save the state_dict() of the model alone");
    if (!is_container(value) && value.kind != PickleKind::kObject) {
      found.push_back({name, value});
    } else if (const auto [place, is_new] = names_.emplace(value.node, name); !is_new) {
      found.push_back({name, value, place->second.empty() ? "the whole" : place->second});
    } else if (value.kind == PickleKind::kObject) {
      visit_object(name, value);
    } else {
      visit_container(name, value);
    }
    --depth_;
  }

  std::vector<PtName> found;

 private:
  static std::string below(const std::string& name, const std::string& key) {
    return name.empty() ? key : name + "." + key;
  }

  void visit_container(const std::string& name, const PickleValue& value) {
    const std::vector<PickleValue>& items = pickle_.node(value).items;
    if (value.kind == PickleKind::kDict) {
      for (size_t i = 0; i < items.size(); i += 2) visit_key(name, items[i], items[i + 1]);
      return;
    }
    const auto is_single = [](const PickleValue& item) {
      return !is_container(item) && item.kind != PickleKind::kObject && item.kind != PickleKind::kTensor;
    };
    if (std::all_of(items.begin(), items.end(), is_single)) {
      found.push_back({name, value});
      return;
    }
    for (size_t i = 0; i < items.size(); ++i) visit(name + "[" + std::to_string(i) + "]", items[i]);
  }

  void visit_key(const std::string& name, const PickleValue& key, const PickleValue& value) {
    if (key.kind == PickleKind::kText) {
      visit(below(name, std::string(pickle_.text(key))), value);
    } else {
      visit(name + "[" + pickle_text(pickle_, key) + "]", value);
    }
  }

  void visit_object(const std::string& name, const PickleValue& value) {
    const std::vector<PickleValue>& items = pickle_.node(value).items;
    found.push_back({name, value});
    if (const PickleValue* state = module_state(pickle_, value)) {
      visit_module(name, *state);
      return;
    }
    for (const PickleObject part : {kState, kDictItems, kListItems}) {
      if (is_container(items[part]) || items[part].kind == PickleKind::kObject) visit(name, items[part]);
    }
    if (!is_container(items[kArgs])) return;
    const std::vector<PickleValue>& args = pickle_.node(items[kArgs]).items;
    for (size_t i = 0; i < args.size(); ++i) {
      if (is_container(args[i]) || args[i].kind == PickleKind::kObject || args[i].kind == PickleKind::kTensor)
        visit(name + "(" + std::to_string(i) + ")", args[i]);
    }
  }

  void visit_module(const std::string& name, const PickleValue& state) {
    const PickleValue* passing = pickle_.find(state, "_non_persistent_buffers_set");
    for (const char* part : {"_parameters", "_buffers", "_modules"}) {
      const PickleValue* dict = pickle_.find(state, part);
      if (dict == nullptr || dict->kind != PickleKind::kDict) continue;
      const std::vector<PickleValue>& items = pickle_.node(*dict).items;
      for (size_t i = 0; i < items.size(); i += 2) {
        if (items[i + 1].kind == PickleKind::kNone || (passing != nullptr && contains(*passing, items[i]))) continue;
        visit_key(name, items[i], items[i + 1]);
      }
    }
  }

  bool contains(const PickleValue& set, const PickleValue& key) const {
    if (!is_container(set)) return false;
    const std::vector<PickleValue>& items = pickle_.node(set).items;
    return std::any_of(items.begin(), items.end(), [&](const PickleValue& item) {
      return item.kind == PickleKind::kText && key.kind == PickleKind::kText && pickle_.text(item) == pickle_.text(key);
    });
  }

  const std::string& what_;
  const Pickle& pickle_;
  std::unordered_map<int64_t, std::string> names_;
  int depth_ = 0;
};

}  // namespace

const PickleValue* module_state(const Pickle& pickle, const PickleValue& value) {
  if (value.kind != PickleKind::kObject) return nullptr;
  const PickleValue& state = pickle.node(value).items[kState];
  const bool is_module = pickle.find(state, "_parameters") != nullptr && pickle.find(state, "_modules") != nullptr;
  return is_module ? &state : nullptr;
}

std::vector<PtName> pt_names(const std::string& what, const Pickle& pickle) {
  Walk walk(what, pickle);
  walk.visit("", pickle.top());
  return std::move(walk.found);
}

std::string pickle_text(const Pickle& pickle, const PickleValue& value) {
  char number[32];
  switch (value.kind) {
    case PickleKind::kNone:
      return "None";
    case PickleKind::kBool:
      return value.integer != 0 ? "True" : "False";
    case PickleKind::kInt:
      return std::to_string(value.integer);
    case PickleKind::kFloat:
      std::snprintf(number, sizeof number, "%.12g", value.number);
      return number;
    case PickleKind::kText:
      return quoted(pickle.text(value));
    case PickleKind::kBytes:
      return std::to_string(pickle.text(value).size()) + " bytes";
    case PickleKind::kBigInt:
      return "an integer of " + std::to_string(pickle.text(value).size()) + " bytes";
    case PickleKind::kGlobal:
    case PickleKind::kObject:
      return pickle_class(pickle, value);
    case PickleKind::kTensor:
      return "a tensor";
    case PickleKind::kStorage:
      return "a storage";
    default:
      break;
  }
  const std::vector<PickleValue>& items = pickle.node(value).items;
  if (value.kind == PickleKind::kDict) return "a dict of " + std::to_string(items.size() / 2);
  std::string all;
  for (const PickleValue& item : items) {
    if (all.size() > kLongest) return "[" + all + ", ... " + std::to_string(items.size()) + " items]";
    all += (all.empty() ? "" : ", ") + (is_container(item) ? std::string("[...]") : pickle_text(pickle, item));
  }
  return "[" + all + "]";
}

}  // namespace moonhalo::io
