// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/operators/schema_convert.h"

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/jit_type.h>

#include <algorithm>

#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

using c10::IValue;
using c10::TypeKind;

/// One conversion: where the value is, the type as boxed kernels see it, and as the schema was
/// written.
struct Conversion {
  lua_State* lua;
  int index;
  std::optional<int32_t> list_size;
  bool numbers_as_tensors;

  Cost convert(const c10::Type& type, const c10::Type& real, IValue& out) const;
  Cost optional(const c10::Type& type, const c10::Type& real, IValue& out) const;
  Cost tensor(IValue& out) const;
  Cost scalar(IValue& out) const;
  Cost integer(const c10::Type& real, IValue& out) const;
  Cost floating(IValue& out) const;
  Cost string(IValue& out) const;
  Cost device(IValue& out) const;
  Cost generator(IValue& out) const;
  Cost list(const c10::Type& type, const c10::Type& real, IValue& out) const;
  template <class Element, class Take>
  Cost elements(const c10::Type& type, const c10::Type& real, c10::List<Element> values, Take take, IValue& out) const;

  /// The value of a 0-dim tensor that no gradient flows through, as PyTorch accepts it for a
  /// number.
  std::optional<at::Scalar> item() const;
};

std::optional<at::Scalar> Conversion::item() const {
  const at::Tensor* tensor = to_tensor(lua, index);
  if (!tensor || tensor->dim() != 0 || tensor->requires_grad()) return std::nullopt;
  return tensor->item();
}

Cost Conversion::tensor(IValue& out) const {
  if (const at::Tensor* tensor = to_tensor(lua, index)) {
    out = *tensor;
    return 0;
  }
  const int kind = lua_type(lua, index);
  if (!numbers_as_tensors || (kind != LUA_TNUMBER && kind != LUA_TBOOLEAN)) return std::nullopt;
  at::Tensor number = at::scalar_to_tensor(check_scalar(lua, index));
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  out = number;
  return 16;
}

Cost Conversion::scalar(IValue& out) const {
  const int kind = lua_type(lua, index);
  if (kind == LUA_TNUMBER || kind == LUA_TBOOLEAN) {
    out = check_scalar(lua, index);
    return 0;
  }
  const std::optional<at::Scalar> value = item();
  if (!value) return std::nullopt;
  out = *value;
  return 4;
}

Cost Conversion::integer(const c10::Type& real, IValue& out) const {
  const std::string text = lua_type(lua, index) == LUA_TSTRING ? lua_tostring(lua, index) : "";
  switch (real.kind()) {
    case TypeKind::ScalarTypeType: {
      const std::optional<at::ScalarType> dtype = parse_dtype(text);
      if (!dtype) return std::nullopt;
      out = static_cast<int64_t>(*dtype);
      return 0;
    }
    case TypeKind::LayoutType: {
      if (text != "strided" && text != "sparse_coo") return std::nullopt;
      out = static_cast<int64_t>(text == "strided" ? at::kStrided : at::kSparse);
      return 0;
    }
    case TypeKind::MemoryFormatType: {
      static const std::map<std::string, at::MemoryFormat> formats = {
          {"contiguous_format", at::MemoryFormat::Contiguous},
          {"preserve_format", at::MemoryFormat::Preserve},
          {"channels_last", at::MemoryFormat::ChannelsLast},
          {"channels_last_3d", at::MemoryFormat::ChannelsLast3d}};
      const auto format = formats.find(text);
      if (format == formats.end()) return std::nullopt;
      out = static_cast<int64_t>(format->second);
      return 0;
    }
    default:
      break;
  }
  if (const std::optional<int64_t> value = to_int(lua, index)) {
    out = *value;
    return lua_isinteger(lua, index) ? 0 : 2;
  }
  const std::optional<at::Scalar> value = item();
  if (!value || !value->isIntegral(false)) return std::nullopt;
  out = value->toLong();
  return 4;
}

Cost Conversion::floating(IValue& out) const {
  if (lua_type(lua, index) == LUA_TNUMBER) {
    out = static_cast<double>(lua_tonumber(lua, index));
    return lua_isinteger(lua, index) ? 1 : 0;
  }
  const std::optional<at::Scalar> value = item();
  if (!value || value->isComplex()) return std::nullopt;
  out = value->toDouble();
  return 4;
}

Cost Conversion::string(IValue& out) const {
  if (lua_type(lua, index) != LUA_TSTRING) return std::nullopt;
  out = check_string(lua, index);
  return 0;
}

Cost Conversion::device(IValue& out) const {
  if (lua_type(lua, index) != LUA_TSTRING) return std::nullopt;
  const std::optional<c10::Device> device = parse_device(lua_tostring(lua, index));
  if (!device) return std::nullopt;
  out = *device;
  return 0;
}

Cost Conversion::generator(IValue& out) const {
  const std::shared_ptr<at::Generator> generator = to_object<at::Generator>(lua, index);
  if (!generator) return std::nullopt;
  out = *generator;
  return 0;
}

Cost Conversion::optional(const c10::Type& type, const c10::Type& real, IValue& out) const {
  if (is_nil(lua, index)) {
    out = IValue();
    return 0;
  }
  return convert(*type.containedType(0), *real.containedType(0), out);
}

template <class Element, class Take>
Cost Conversion::elements(const c10::Type& type, const c10::Type& real, c10::List<Element> values, Take take,
                          IValue& out) const {
  const c10::Type& inner = *type.containedType(0);
  const c10::Type& inner_real = *real.containedType(0);
  int worst = 0;
  const auto add = [&](int at) {
    IValue value;
    const Cost cost = Conversion{lua, at, std::nullopt, false}.convert(inner, inner_real, value);
    if (cost) values.push_back(take(value)), worst = std::max(worst, *cost);
    return cost.has_value();
  };
  if (!lua_istable(lua, index)) {
    const TypeKind kind = inner.kind();
    const bool number = kind == TypeKind::IntType || kind == TypeKind::FloatType || kind == TypeKind::SymIntType;
    if (!number && !(list_size && kind == TypeKind::BoolType)) return std::nullopt;
    const int copies = list_size.value_or(0) > 0 ? *list_size : 1;
    for (int i = 0; i < copies; ++i) {
      if (!add(index)) return std::nullopt;
    }
    out = std::move(values);
    return worst + (list_size ? 1 : 3);
  }
  // The largest integer key, not the border, so that lists of optional tensors may have holes.
  lua_Integer count = 0;
  for (lua_pushnil(lua); lua_next(lua, index); lua_pop(lua, 1)) {
    if (!lua_isinteger(lua, -2)) {
      lua_pop(lua, 2);
      return std::nullopt;
    }
    count = std::max(count, lua_tointeger(lua, -2));
  }
  for (lua_Integer i = 1; i <= count; ++i) {
    lua_rawgeti(lua, index, i);
    const bool fits = add(lua_gettop(lua));
    lua_pop(lua, 1);
    if (!fits) return std::nullopt;
  }
  out = std::move(values);
  return worst;
}

Cost Conversion::list(const c10::Type& type, const c10::Type& real, IValue& out) const {
  const c10::TypePtr element = type.containedType(0);
  switch (element->kind()) {
    case TypeKind::TensorType:
      return elements(
          type, real, c10::List<at::Tensor>(), [](const IValue& v) { return v.toTensor(); }, out);
    case TypeKind::OptionalType:
      if (element->containedType(0)->kind() != TypeKind::TensorType) return std::nullopt;
      return elements(
          type, real, c10::List<std::optional<at::Tensor>>(),
          [](const IValue& v) { return v.isNone() ? std::optional<at::Tensor>() : v.toTensor(); }, out);
    case TypeKind::SymIntType:
    case TypeKind::IntType:
      return elements(
          type, real, c10::List<int64_t>(), [](const IValue& v) { return v.toInt(); }, out);
    case TypeKind::FloatType:
      return elements(
          type, real, c10::List<double>(), [](const IValue& v) { return v.toDouble(); }, out);
    case TypeKind::BoolType:
      return elements(
          type, real, c10::List<bool>(), [](const IValue& v) { return v.toBool(); }, out);
    case TypeKind::StringType:
      return elements(
          type, real, c10::List<std::string>(), [](const IValue& v) { return v.toStringRef(); }, out);
    case TypeKind::NumberType:
      return elements(
          type, real, c10::List<at::Scalar>(), [](const IValue& v) { return v.toScalar(); }, out);
    default:
      return std::nullopt;
  }
}

Cost Conversion::convert(const c10::Type& type, const c10::Type& real, IValue& out) const {
  switch (type.kind()) {
    case TypeKind::TensorType:
      return tensor(out);
    case TypeKind::OptionalType:
      return optional(type, real, out);
    case TypeKind::ListType:
      return list(type, real, out);
    case TypeKind::NumberType:
      return scalar(out);
    case TypeKind::SymIntType:
    case TypeKind::IntType:
      return integer(real, out);
    case TypeKind::FloatType:
      return floating(out);
    case TypeKind::StringType:
      return string(out);
    case TypeKind::DeviceObjType:
      return device(out);
    case TypeKind::GeneratorType:
      return generator(out);
    case TypeKind::BoolType:
      if (!lua_isboolean(lua, index)) return std::nullopt;
      out = static_cast<bool>(lua_toboolean(lua, index));
      return 0;
    default:
      return std::nullopt;
  }
}

void push_dtype_code(lua_State* lua, int64_t code, const c10::Type& real) {
  if (real.kind() == TypeKind::ScalarTypeType) {
    push(lua, static_cast<at::ScalarType>(code));
  } else {
    push(lua, code);
  }
}

}  // namespace

Cost from_lua(lua_State* lua, int index, const c10::Argument& argument, bool numbers_as_tensors, IValue& out) {
  const Conversion conversion{lua, lua_absindex(lua, index), argument.N(), numbers_as_tensors};
  return conversion.convert(*argument.type(), *argument.real_type(), out);
}

void push_value(lua_State* lua, const IValue& value, const c10::Type& real) {
  if (real.kind() == TypeKind::OptionalType) {
    if (value.isNone()) {
      lua_pushnil(lua);
    } else {
      push_value(lua, value, *real.containedType(0));
    }
    return;
  }
  if (value.isNone()) {
    lua_pushnil(lua);
  } else if (value.isTensor()) {
    push(lua, value.toTensor());
  } else if (value.isBool()) {
    push(lua, value.toBool());
  } else if (value.isInt()) {
    push_dtype_code(lua, value.toInt(), real);
  } else if (value.isDouble()) {
    push(lua, value.toDouble());
  } else if (value.isString()) {
    push(lua, value.toStringRef());
  } else if (value.isDevice()) {
    push(lua, value.toDevice());
  } else if (value.isScalar()) {
    push(lua, value.toScalar());
  } else if (value.isSymInt()) {
    push(lua, value.toSymInt().guard_int(__FILE__, __LINE__));
  } else if (value.isList() || value.isTensorList() || value.isIntList()) {
    const c10::ArrayRef<IValue> values = value.toListRef();
    const c10::Type& element = real.kind() == TypeKind::ListType ? *real.containedType(0) : real;
    lua_createtable(lua, static_cast<int>(values.size()), 0);
    for (size_t i = 0; i < values.size(); ++i) {
      push_value(lua, values[i], element);
      lua_rawseti(lua, -2, static_cast<lua_Integer>(i + 1));
    }
  } else if (value.isTuple()) {
    const auto& values = value.toTupleRef().elements();
    lua_createtable(lua, static_cast<int>(values.size()), 0);
    for (size_t i = 0; i < values.size(); ++i) {
      push_value(lua, values[i], *c10::AnyType::get());
      lua_rawseti(lua, -2, static_cast<lua_Integer>(i + 1));
    }
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "a result of type ", value.tagKind(), " cannot be handed to Lua");
  }
}

}  // namespace moonhalo::scripting
