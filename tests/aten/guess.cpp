// SPDX-License-Identifier: Apache-2.0
// Arguments made from a schema: the names and types of its arguments suggest values, the plain call decides.
#include <algorithm>
#include <functional>

#include "tests/aten/notation.h"
#include "tests/aten/samples.h"

namespace moonhalo::testing {
namespace {

using c10::TypeKind;

constexpr int kTries = 40;  // per first tensor

const std::vector<std::string> kFirst = {"d[5,4,3]", "d[4,4]", "p[5,4,3]", "b[5,4]",     "l[5,4,3]<6", "c[5,4]",
                                         "w[5,4,3]", "d[6]",   "d[2,3,6]", "d[2,3,6,5]", "s[3,4,4]",   "d[1,2,4,3,5]"};

bool mentions(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

std::string zeros_to(const std::string& first) { return first.substr(1, first.find(']')); }

// Ways to fill one argument, the likeliest first. "" takes the default.
std::vector<std::string> candidates(const c10::Argument& argument, const std::string& first, bool leading) {
  const std::string& name = argument.name();
  c10::TypePtr type = argument.type();
  std::vector<std::string> result;
  if (argument.is_out()) return {""};
  if (argument.default_value() || type->kind() == TypeKind::OptionalType) result.push_back("");
  if (type->kind() == TypeKind::OptionalType) type = type->expectRef<c10::OptionalType>().getElementType();
  const auto add = [&](std::initializer_list<const char*> more) {
    result.insert(result.end(), more.begin(), more.end());
  };
  const bool dim = mentions(name, "dim");
  switch (type->kind()) {
    case TypeKind::TensorType: {
      if (leading) return {first};
      const std::string shape = zeros_to(first);
      if (mentions(name, "ind")) add({"l[3]<3", "l[5,4,3]<3"});
      if (mentions(name, "mask") || name == "condition") result.push_back("b" + shape);
      result.push_back(first);
      add({"d[4,1]", "d[]"});
      result.push_back("l" + shape + "<3");
      add({"d[3]", "d[4]", "d[3,2]"});
      break;
    }
    case TypeKind::IntType:
      if (argument.real_type()->kind() != TypeKind::IntType && argument.real_type()->kind() != TypeKind::SymIntType)
        break;
      if (dim) add({"1", "0", "-1"});
      if (!dim) add({"2", "1", "3", "0"});
      break;
    case TypeKind::FloatType:
      add({"0.5", "2"});
      break;
    case TypeKind::NumberType:
      add({"0.7", "2"});
      break;
    case TypeKind::BoolType:
      add({"false", "true"});
      break;
    case TypeKind::ListType: {
      const auto item = type->expectRef<c10::ListType>().getElementType()->kind();
      if (item == TypeKind::TensorType) {
        if (leading) return {"{" + first + ", " + first + "}"};
        result.push_back("{" + first + ", " + first + "}");
      }
      if (item == TypeKind::OptionalType) add({"{l[3]<3}", "{-, l[3]<3}"});
      if (item == TypeKind::IntType && dim) add({"[1]", "[0,2]", "[0,1]"});
      if (item == TypeKind::IntType && !dim) add({"[1]", "[2,2]", "[1,1]", "[5,4,3]", "[2]"});
      if (item == TypeKind::NumberType || item == TypeKind::FloatType) add({"[0.5, 2]", "[0.5]"});
      break;
    }
    default:
      break;
  }
  if (result.empty()) result.push_back("-");
  return result;
}

std::string joined(const c10::FunctionSchema& schema, const std::vector<std::vector<std::string>>& choices,
                   const std::vector<size_t>& picks) {
  std::string text;
  for (size_t i = 0; i < picks.size(); ++i) {
    const std::string& value = choices[i][picks[i]];
    if (value.empty()) continue;
    if (!text.empty()) text += ", ";
    text += schema.arguments()[i].name() + "=" + value;
  }
  return text;
}

// The next combination, the last argument turning fastest; false after the last.
bool advance(std::vector<size_t>& picks, const std::vector<std::vector<std::string>>& choices) {
  for (size_t i = picks.size(); i > 0; --i) {
    if (++picks[i - 1] < choices[i - 1].size()) return true;
    picks[i - 1] = 0;
  }
  return false;
}

}  // namespace

std::vector<Sample> guessed_samples(const Operator& op, size_t most) {
  const auto& schema = op.handle.schema();
  std::vector<Sample> found;
  for (const std::string& first : kFirst) {
    if (found.size() >= most) break;
    std::vector<std::vector<std::string>> choices;
    bool leading = true;
    for (const auto& argument : schema.arguments()) {
      choices.push_back(candidates(argument, first, leading));
      const bool tensors = choices.back()[0].find(first) != std::string::npos;
      leading = leading && !tensors;
    }
    std::vector<size_t> picks(choices.size(), 0);
    for (int tries = 0; tries < kTries; ++tries) {
      if (auto sample = make_sample(op, joined(schema, choices, picks))) {
        found.push_back(std::move(*sample));
        break;
      }
      if (!advance(picks, choices)) break;
    }
    if (found.size() != 1) continue;
    // The first that works is varied, one argument at a time.
    for (size_t i = 0; i < picks.size() && found.size() + 1 < most; ++i) {
      std::vector<size_t> other = picks;
      for (size_t pick = 0; pick < choices[i].size(); ++pick) {
        if (pick == picks[i]) continue;
        other[i] = pick;
        auto sample = make_sample(op, joined(schema, choices, other));
        if (!sample) continue;
        found.push_back(std::move(*sample));
        break;
      }
    }
  }
  return found;
}

}  // namespace moonhalo::testing
