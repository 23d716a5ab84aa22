// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/pytorch/pickle.h"

#include "moonhalo/io/pytorch/pickle_reader.h"

namespace moonhalo::io {

Pickle::Pickle(std::string what, std::string bytes) : bytes_(std::move(bytes)) {
  PickleReader(std::move(what), *this).read();
}

bool Pickle::has_items(const PickleValue& value) const {
  switch (value.kind) {
    case PickleKind::kList:
    case PickleKind::kTuple:
    case PickleKind::kSet:
    case PickleKind::kDict:
    case PickleKind::kObject:
    case PickleKind::kStorage:
    case PickleKind::kTensor:
      return true;
    default:
      return false;
  }
}

std::string_view Pickle::text(const PickleValue& value) const {
  switch (value.kind) {
    case PickleKind::kText:
    case PickleKind::kBytes:
    case PickleKind::kGlobal:
    case PickleKind::kBigInt:
      return node(value).text;
    default:
      return {};
  }
}

const PickleValue* Pickle::find(const PickleValue& dict, std::string_view key) const {
  if (dict.kind != PickleKind::kDict) return nullptr;
  const std::vector<PickleValue>& items = node(dict).items;
  for (size_t i = items.size(); i >= 2; i -= 2) {
    if (items[i - 2].kind == PickleKind::kText && text(items[i - 2]) == key) return &items[i - 1];
  }
  return nullptr;
}

std::string pickle_class(const Pickle& pickle, const PickleValue& value) {
  if (value.kind == PickleKind::kGlobal) return std::string(pickle.text(value));
  if (value.kind != PickleKind::kObject) return "";
  const PickleValue& call = pickle.node(value).items[kCall];
  return call.kind == PickleKind::kGlobal ? std::string(pickle.text(call)) : "object";
}

}  // namespace moonhalo::io
