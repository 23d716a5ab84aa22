// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/pytorch/numpy_values.h"

#include <ATen/ATen.h>

#include <cstring>
#include <numeric>
#include <string>

#include "moonhalo/io/base/numpy_dtypes.h"

namespace moonhalo::io {
namespace {

const std::vector<PickleValue> kNothing;

}  // namespace

/// numpy 2 calls its module numpy._core.
bool NumpyValues::is_call(const PickleValue& object, std::string_view function) const {
  if (object.kind != PickleKind::kObject) return false;
  std::string_view name = pickle_.text(pickle_.node(object).items[kCall]);
  for (const std::string_view module : {"numpy.core.", "numpy._core.", "numpy."}) {
    if (name.starts_with(module)) return name.substr(module.size()) == function;
  }
  return false;
}

std::optional<at::ScalarType> NumpyValues::dtype(const PickleValue& object) const {
  if (!is_call(object, "dtype")) return std::nullopt;
  const std::vector<PickleValue>& parts = pickle_.node(object).items;
  const std::vector<PickleValue>& args =
      parts[kArgs].kind == PickleKind::kTuple ? pickle_.node(parts[kArgs]).items : kNothing;
  const std::vector<PickleValue>& state =
      parts[kState].kind == PickleKind::kTuple ? pickle_.node(parts[kState]).items : kNothing;
  if (args.empty() || (state.size() > 1 && pickle_.text(state[1]) == ">")) return std::nullopt;
  return numpy_dtype(pickle_.text(args[0]));
}

/// _reconstruct(numpy.ndarray, (0,), b"b") with the state (version, shape, dtype, in Fortran's order, bytes).
std::optional<at::Tensor> NumpyValues::array(const PickleValue& object) {
  if (!is_call(object, "multiarray._reconstruct")) return std::nullopt;
  const PickleValue& state = pickle_.node(object).items[kState];
  if (state.kind != PickleKind::kTuple || pickle_.node(state).items.size() != 5) return std::nullopt;
  const std::vector<PickleValue>& parts = pickle_.node(state).items;
  const std::optional<at::ScalarType> type = dtype(parts[2]);
  if (!type || parts[1].kind != PickleKind::kTuple || parts[4].kind != PickleKind::kBytes) return std::nullopt;
  std::vector<int64_t> shape;
  auto bytes = static_cast<int64_t>(c10::elementSize(*type));
  for (const PickleValue& size : pickle_.node(parts[1]).items) {
    if (size.kind != PickleKind::kInt || size.integer < 0 || __builtin_mul_overflow(bytes, size.integer, &bytes))
      return std::nullopt;
    shape.push_back(size.integer);
  }
  const std::string_view data = pickle_.text(parts[4]);
  used_ += bytes;
  if (bytes != static_cast<int64_t>(data.size()) || used_ > pickle_.end()) return std::nullopt;
  const bool reversed = parts[3].kind == PickleKind::kBool && parts[3].integer != 0;
  std::vector<int64_t> dims(shape.size());
  std::iota(dims.rbegin(), dims.rend(), 0);
  const at::Tensor made = at::empty(reversed ? std::vector<int64_t>(shape.rbegin(), shape.rend()) : shape, *type);
  std::memcpy(made.mutable_data_ptr(), data.data(), data.size());
  return reversed ? made.permute(dims).contiguous() : made;
}

std::optional<at::Scalar> NumpyValues::scalar(const PickleValue& object) const {
  if (!is_call(object, "multiarray.scalar")) return std::nullopt;
  const PickleValue& args = pickle_.node(object).items[kArgs];
  if (args.kind != PickleKind::kTuple || pickle_.node(args).items.size() != 2) return std::nullopt;
  const std::vector<PickleValue>& parts = pickle_.node(args).items;
  const std::optional<at::ScalarType> type = dtype(parts[0]);
  const std::string_view data = pickle_.text(parts[1]);
  if (!type || data.size() != c10::elementSize(*type) || c10::isComplexType(*type)) return std::nullopt;
  const at::Tensor made = at::empty({}, *type);
  std::memcpy(made.mutable_data_ptr(), data.data(), data.size());
  return made.item();
}

}  // namespace moonhalo::io
