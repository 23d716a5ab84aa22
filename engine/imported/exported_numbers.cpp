// SPDX-License-Identifier: Apache-2.0
// Python's arithmetic on sizes, which programs with dynamic shapes contain.
#include <c10/util/Exception.h>

#include <cmath>
#include <functional>
#include <map>

#include "moonhalo/engine/imported/exported_graph.h"

namespace moonhalo::exported {
namespace {

using c10::IValue;
using Numbers = std::vector<IValue>;

double real(const IValue& value) {
  if (value.isBool()) return value.toBool() ? 1 : 0;
  return value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble();
}
int64_t whole_number(const IValue& value) { return value.isBool() ? value.toBool() : value.toInt(); }
bool is_whole(const IValue& value) { return value.isInt() || value.isBool(); }

// Towards minus infinity, as Python rounds.
int64_t floor_quotient(int64_t a, int64_t b) {
  TORCH_CHECK_VALUE(b != 0, "a size is divided by zero");
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

template <class OnInts, class OnReals>
std::function<IValue(const Numbers&)> arithmetic(OnInts on_ints, OnReals on_reals) {
  return [=](const Numbers& in) -> IValue {
    if (is_whole(in.at(0)) && is_whole(in.at(1))) return on_ints(whole_number(in[0]), whole_number(in[1]));
    return on_reals(real(in.at(0)), real(in.at(1)));
  };
}

template <class Compare>
std::function<IValue(const Numbers&)> comparison(Compare compare) {
  return [=](const Numbers& in) -> IValue {
    if (is_whole(in.at(0)) && is_whole(in.at(1))) return compare(whole_number(in[0]), whole_number(in[1]));
    return compare(real(in.at(0)), real(in.at(1)));
  };
}

int64_t power(int64_t base, int64_t exponent) {
  TORCH_CHECK_VALUE(exponent >= 0 && exponent < 64, "a size to the power ", exponent);
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) result *= base;
  return result;
}

using NumberOperators = std::map<std::string, std::function<IValue(const Numbers&)>>;

void add_unary(NumberOperators& all) {
  all["_operator.neg"] = [](const Numbers& in) -> IValue {
    if (is_whole(in.at(0))) return -whole_number(in[0]);
    return -real(in.at(0));
  };
  all["torch.sym_not"] = all["_operator.not_"] = [](const Numbers& in) -> IValue { return !in.at(0).toBool(); };
  all["torch.sym_float"] = [](const Numbers& in) -> IValue { return real(in.at(0)); };
  all["torch.sym_int"] = all["math.trunc"] = [](const Numbers& in) -> IValue {
    return is_whole(in.at(0)) ? whole_number(in[0]) : static_cast<int64_t>(std::trunc(real(in[0])));
  };
  all["math.ceil"] = [](const Numbers& in) -> IValue { return static_cast<int64_t>(std::ceil(real(in.at(0)))); };
  all["round"] = [](const Numbers& in) -> IValue { return static_cast<int64_t>(std::nearbyint(real(in.at(0)))); };
  all["torch._sym_sqrt"] = [](const Numbers& in) -> IValue { return std::sqrt(real(in.at(0))); };
}

NumberOperators number_operators() {
  NumberOperators all;
  all["_operator.add"] = arithmetic(std::plus<>(), std::plus<>());
  all["_operator.sub"] = arithmetic(std::minus<>(), std::minus<>());
  all["_operator.mul"] = arithmetic(std::multiplies<>(), std::multiplies<>());
  all["_operator.floordiv"] = arithmetic(floor_quotient, [](double a, double b) { return std::floor(a / b); });
  all["_operator.mod"] = arithmetic([](int64_t a, int64_t b) { return a - floor_quotient(a, b) * b; },
                                    [](double a, double b) { return a - std::floor(a / b) * b; });
  all["_operator.truediv"] = [](const Numbers& in) -> IValue { return real(in.at(0)) / real(in.at(1)); };
  all["_operator.pow"] = arithmetic(power, [](double a, double b) { return std::pow(a, b); });
  all["torch.sym_max"] = arithmetic([](int64_t a, int64_t b) { return std::max(a, b); },
                                    [](double a, double b) { return std::max(a, b); });
  all["torch.sym_min"] = arithmetic([](int64_t a, int64_t b) { return std::min(a, b); },
                                    [](double a, double b) { return std::min(a, b); });
  all["_operator.eq"] = comparison(std::equal_to<>());
  all["_operator.ne"] = comparison(std::not_equal_to<>());
  all["_operator.lt"] = comparison(std::less<>());
  all["_operator.le"] = comparison(std::less_equal<>());
  all["_operator.gt"] = comparison(std::greater<>());
  all["_operator.ge"] = comparison(std::greater_equal<>());
  all["_operator.and_"] = [](const Numbers& in) -> IValue { return in.at(0).toBool() && in.at(1).toBool(); };
  all["_operator.or_"] = [](const Numbers& in) -> IValue { return in.at(0).toBool() || in.at(1).toBool(); };
  all["torch.sym_ite"] = [](const Numbers& in) -> IValue { return in.at(0).toBool() ? in.at(1) : in.at(2); };
  add_unary(all);
  return all;
}

const NumberOperators& all_number_operators() {
  static const NumberOperators all = number_operators();
  return all;
}

}  // namespace

bool is_number_operator(const std::string& target) { return all_number_operators().contains(target); }

IValue compute_number(const std::string& target, const std::vector<IValue>& arguments) {
  return all_number_operators().at(target)(arguments);
}

}  // namespace moonhalo::exported
