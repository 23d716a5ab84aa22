// SPDX-License-Identifier: Apache-2.0
#include "tests/aten/notation.h"

#include <ATen/ATen.h>

#include <charconv>
#include <map>
#include <stdexcept>

#include "tests/support/oracle.h"

namespace moonhalo::testing {
namespace {

using c10::IValue;
using c10::TypeKind;

struct Misfit : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string trim(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \n");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \n") - begin + 1);
}

int64_t integer(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) throw Misfit("no integer: " + text);
  return value;
}

double number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) throw Misfit("no number: " + text);
  return value;
}

bool boolean(const std::string& text) {
  if (text != "true" && text != "false") throw Misfit("no bool: " + text);
  return text == "true";
}

// Returns what is between the first and the last character, which must be `open` and `close`.
std::string inside(const std::string& text, char open, char close) {
  if (text.size() < 2 || text.front() != open || text.back() != close) throw Misfit("no list: " + text);
  return text.substr(1, text.size() - 2);
}

at::ScalarType dtype_of(char kind) {
  switch (kind) {
    case 'f':
      return at::kFloat;
    case 'e':
      return at::kBFloat16;
    case 'c':
      return at::kComplexDouble;
    case 'b':
      return at::kBool;
    case 'l':
    case 'n':
      return at::kLong;
    case 'i':
      return at::kInt;
    case 'y':
      return at::kByte;
    case 'd':
    case 'p':
    case 'w':
    case 'a':
    case 's':
    case 'g':
    case 't':
      return at::kDouble;
    default:
      throw Misfit(std::string("no kind of tensor: ") + kind);
  }
}

at::Tensor drawn(char kind, at::IntArrayRef shape, int64_t seed) {
  const at::Tensor x = make_tensor(shape, seed, dtype_of(kind));
  const auto eye = [&] {
    if (shape.size() < 2 || shape[shape.size() - 1] != shape[shape.size() - 2]) throw Misfit("no square matrix");
    return 3 * at::eye(shape.back(), at::kDouble);
  };
  switch (kind) {
    case 'p':
      return x * 0.45 + 0.55;
    case 'w':
      return x * 0.95 + 2.05;
    case 'a':
      return x.dim() == 0 ? x : std::get<0>(x.sort(-1));
    case 'n':
      return make_tensor(shape, seed).argsort(int64_t{-1}, false);
    case 's':
      return at::matmul(x, x.mT()) + eye();
    case 'g':
      return x + eye();
    case 't':
      return (x + eye()).tril();
    default:
      return x;
  }
}

at::Tensor tensor(const std::string& text, int64_t seed) {
  if (text.size() < 3) throw Misfit("no tensor: " + text);
  const char kind = text[0];
  const at::ScalarType dtype = dtype_of(kind);
  if (text[1] == '{') {
    std::vector<double> values;
    for (const std::string& item : split_arguments(inside(text.substr(1), '{', '}'))) values.push_back(number(item));
    return at::tensor(values, at::kDouble).to(dtype);
  }
  if (text[1] == '(') return at::scalar_tensor(number(inside(text.substr(1), '(', ')')), at::kDouble).to(dtype);
  const size_t close = text.find(']');
  if (text[1] != '[' || close == std::string::npos) throw Misfit("no tensor: " + text);
  std::vector<int64_t> shape;
  for (const std::string& item : split_arguments(text.substr(2, close - 2))) shape.push_back(integer(item));
  const at::Tensor x = drawn(kind, shape, seed);
  const std::string rest = text.substr(close + 1);
  if (rest.empty()) return x;
  if (rest[0] != '<') throw Misfit("no tensor: " + text);
  const double below = static_cast<double>(integer(rest.substr(1)));
  return ((make_tensor(shape, seed) + 1) * (below / 2)).floor().clamp(0, below - 1).to(dtype);
}

template <typename Item, typename Read>
c10::List<Item> list_of(const std::vector<std::string>& items, const Read& read) {
  c10::List<Item> list;
  for (const std::string& item : items) list.push_back(read(item));
  return list;
}

bool is_tensor(const c10::TypePtr& type) {
  return type->kind() == TypeKind::TensorType ||
         (type->kind() == TypeKind::OptionalType && type->containedTypes()[0]->kind() == TypeKind::TensorType);
}

IValue list_value(const c10::TypePtr& type, const std::string& text, int64_t* seed) {
  const c10::TypePtr item = type->expectRef<c10::ListType>().getElementType();
  const auto items = split_arguments(is_tensor(item) ? inside(text, '{', '}') : inside(text, '[', ']'));
  const auto next_tensor = [&](const std::string& i) { return tensor(i, (*seed)++); };
  switch (item->kind()) {
    case TypeKind::OptionalType:
      return list_of<std::optional<at::Tensor>>(
          items, [&](const std::string& i) { return i == "-" ? std::nullopt : std::optional(next_tensor(i)); });
    case TypeKind::TensorType:
      return list_of<at::Tensor>(items, next_tensor);
    case TypeKind::IntType:
      return list_of<int64_t>(items, integer);
    case TypeKind::FloatType:
      return list_of<double>(items, number);
    case TypeKind::BoolType:
      return list_of<bool>(items, boolean);
    case TypeKind::NumberType: {
      c10::impl::GenericList list(c10::NumberType::get());
      for (const std::string& i : items) list.push_back(number(i));
      return list;
    }
    default:
      throw Misfit("no notation for " + type->str());
  }
}

IValue value(const c10::TypePtr& type, const c10::TypePtr& real, const std::string& text, int64_t* seed) {
  switch (type->kind()) {
    case TypeKind::OptionalType:
      if (text == "-") return {};
      return value(
          type->expectRef<c10::OptionalType>().getElementType(),
          real->kind() == TypeKind::OptionalType ? real->expectRef<c10::OptionalType>().getElementType() : real, text,
          seed);
    case TypeKind::TensorType:
      return tensor(text, (*seed)++);
    case TypeKind::IntType:
      if (real->kind() == TypeKind::ScalarTypeType) {
        const auto dtype = dtype_named(text);
        if (!dtype) throw Misfit("no dtype: " + text);
        return static_cast<int64_t>(*dtype);
      }
      return integer(text);
    case TypeKind::FloatType:
      return number(text);
    case TypeKind::BoolType:
      return boolean(text);
    case TypeKind::NumberType:
      if (text.find_first_of(".e") == std::string::npos && text != "inf" && text != "-inf") return integer(text);
      return number(text);
    case TypeKind::StringType:
      return inside(text, '"', '"');
    case TypeKind::ListType:
      return list_value(type, text, seed);
    default:
      throw Misfit("no notation for " + type->str());
  }
}

}  // namespace

std::optional<at::ScalarType> dtype_named(const std::string& word) {
  static const std::map<std::string, at::ScalarType> kWords = {
      {"double", at::kDouble}, {"float", at::kFloat}, {"long", at::kLong},
      {"int", at::kInt},       {"bool", at::kBool},   {"complex", at::kComplexDouble}};
  const auto found = kWords.find(word);
  return found == kWords.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> split_arguments(const std::string& text) {
  std::vector<std::string> parts;
  int depth = 0;
  bool quoted = false;
  std::string part;
  for (const char c : text) {
    if (c == '"') quoted = !quoted;
    if (!quoted && (c == '[' || c == '{' || c == '(')) ++depth;
    if (!quoted && (c == ']' || c == '}' || c == ')')) --depth;
    if (c == ',' && depth == 0 && !quoted) {
      parts.push_back(trim(part));
      part.clear();
    } else {
      part += c;
    }
  }
  if (!trim(part).empty() || !parts.empty()) parts.push_back(trim(part));
  return parts;
}

std::optional<std::vector<IValue>> read_arguments(const c10::FunctionSchema& schema, const std::string& text,
                                                  std::string* problem) {
  const auto& arguments = schema.arguments();
  std::vector<std::optional<std::string>> given(arguments.size());
  try {
    size_t next = 0;
    for (const std::string& part : split_arguments(text)) {
      const size_t equals = part.find('=');
      if (equals == std::string::npos || part[0] == '"') {
        if (next == arguments.size()) throw Misfit("too many arguments");
        given[next++] = part;
        continue;
      }
      const auto index = schema.argumentIndexWithName(part.substr(0, equals));
      if (!index) throw Misfit("no argument " + part);
      given[*index] = part.substr(equals + 1);
    }
    std::vector<IValue> values;
    int64_t seed = 1;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (given[i]) {
        values.push_back(value(arguments[i].type(), arguments[i].real_type(), *given[i], &seed));
      } else if (arguments[i].default_value()) {
        values.push_back(*arguments[i].default_value());
      } else if (arguments[i].is_out() || arguments[i].type()->kind() == TypeKind::OptionalType) {
        values.emplace_back();
      } else {
        throw Misfit("argument " + arguments[i].name() + " is missing");
      }
    }
    return values;
  } catch (const Misfit& misfit) {
    if (problem != nullptr) *problem = misfit.what();
    return std::nullopt;
  }
}

}  // namespace moonhalo::testing
