// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/operators/indexing.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t from = 0;;) {
    const size_t at = text.find(separator, from);
    parts.push_back(trimmed(text.substr(from, at - from)));
    if (at == std::string_view::npos) return parts;
    from = at + 1;
  }
}

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

[[noreturn]] void bad_part(std::string_view text, std::string_view part) {
  TORCH_CHECK_VALUE(false, "index \"", text, "\": cannot read '", part,
                    "'\n  fix   write integers, start:stop:step, ... or None, separated by commas");
}

IndexPart parse_slice(std::string_view text, std::string_view part) {
  const std::vector<std::string_view> bounds = split(part, ':');
  if (bounds.size() > 3) bad_part(text, part);
  IndexPart slice;
  slice.kind = IndexPart::kSlice;
  std::optional<int64_t>* fields[] = {&slice.start, &slice.stop, &slice.step};
  for (size_t i = 0; i < bounds.size(); ++i) {
    if (bounds[i].empty()) continue;
    *fields[i] = parse_integer(bounds[i]);
    if (!*fields[i]) bad_part(text, part);
  }
  TORCH_CHECK_VALUE(slice.step.value_or(1) > 0, "index \"", text, "\": step ", *slice.step, " of '",
                    part, "' is not positive\n  fix   x:flip(dim) turns a dimension round");
  return slice;
}

bool is_new_axis(std::string_view text) { return text == "None" || text == "newaxis"; }

/// Dimensions of the tensor that a part uses up.
int64_t consumed(const IndexPart& part) {
  switch (part.kind) {
    case IndexPart::kEllipsis:
    case IndexPart::kNewAxis:
      return 0;
    case IndexPart::kTensor:
      return part.tensor.scalar_type() == at::kBool ? part.tensor.dim() : 1;
    default:
      return 1;
  }
}

struct Selected {
  at::Tensor view;
  c10::List<std::optional<at::Tensor>> indices = c10::List<std::optional<at::Tensor>>();
  bool has_tensor = false;
  std::vector<int64_t> integer_dims = {};  // of the view, where integers were kept as slices of one row
};

/// keep_integers   x[3] as x[3:4]: a block of a cut dimension can be written through a slice, not
/// through a row
Selected select_view(const at::Tensor& tensor, const std::vector<IndexPart>& parts, bool keep_integers = false) {
  int64_t used = 0;
  int ellipses = 0;
  for (const IndexPart& part : parts) {
    used += consumed(part);
    ellipses += part.kind == IndexPart::kEllipsis;
  }
  TORCH_CHECK_VALUE(ellipses <= 1, "index: '...' may stand only once");
  TORCH_CHECK_INDEX(used <= tensor.dim(), "index: too many indices, ", used, " for a tensor of ",
                    tensor.dim(), " dimensions\n  have  shape ", tensor.sizes());
  Selected selected;
  selected.view = tensor;
  int64_t dim = 0;     // of the view so far
  int64_t source = 0;  // of the tensor, for messages
  const auto keep = [&](int64_t dims) {
    for (int64_t i = 0; i < dims; ++i) selected.indices.push_back(std::nullopt);
    dim += dims;
  };
  for (const IndexPart& part : parts) {
    switch (part.kind) {
      case IndexPart::kInteger: {
        const int64_t size = selected.view.size(dim);
        TORCH_CHECK_INDEX(part.integer >= -size && part.integer < size, "index ", part.integer,
                          " is out of range for dimension ", source, " of size ", size,
                          "\n  have  shape ", tensor.sizes(), "\n  fix   ",
                          size == 0 ? "the dimension is empty"
                                    : "indices go from 0 to " + std::to_string(size - 1) + ", from the end from -1 to -" +
                                          std::to_string(size));
        if (keep_integers) {
          const int64_t row = part.integer < 0 ? part.integer + size : part.integer;
          selected.view = selected.view.slice(dim, row, row + 1);
          selected.integer_dims.push_back(dim);
          keep(1);
        } else {
          selected.view = selected.view.select(dim, part.integer);
        }
        break;
      }
      case IndexPart::kSlice:
        if (part.start || part.stop || part.step) {
          selected.view = selected.view.slice(dim, part.start, part.stop, part.step.value_or(1));
        }
        keep(1);
        break;
      case IndexPart::kNewAxis:
        selected.view = selected.view.unsqueeze(dim);
        keep(1);
        break;
      case IndexPart::kEllipsis:
        keep(tensor.dim() - used);
        break;
      case IndexPart::kTensor:
        selected.indices.push_back(part.tensor);
        selected.has_tensor = true;
        dim += consumed(part);
        break;
    }
    source += part.kind == IndexPart::kEllipsis ? tensor.dim() - used : consumed(part);
  }
  return selected;
}

}  // namespace

bool looks_like_index(std::string_view text) {
  text = trimmed(text);
  if (text.empty()) return true;
  if (text.find_first_of("0123456789-:.+,") == 0) return true;
  return is_new_axis(trimmed(text.substr(0, text.find(','))));
}

std::vector<IndexPart> parse_index(std::string_view text) {
  std::vector<IndexPart> parts;
  for (const std::string_view part : split(text, ',')) {
    IndexPart parsed;
    if (part == "...") {
      parsed.kind = IndexPart::kEllipsis;
    } else if (is_new_axis(part)) {
      parsed.kind = IndexPart::kNewAxis;
    } else if (part.find(':') != std::string_view::npos) {
      parsed = parse_slice(text, part);
    } else if (const auto integer = parse_integer(part)) {
      parsed.integer = *integer;
    } else {
      bad_part(text, part);
    }
    parts.push_back(std::move(parsed));
  }
  return parts;
}

namespace {

/// x[{0, 2}] looks like Python's x[0, 2] and like its x[[0, 2]], which are not the same.
void refuse_ambiguous(lua_State* lua, int index) {
  const auto count = static_cast<lua_Integer>(lua_rawlen(lua, index));
  std::string numbers;
  for (lua_Integer i = 1; i <= count; ++i) {
    lua_rawgeti(lua, index, i);
    const std::optional<int64_t> number = to_int(lua, -1);
    lua_pop(lua, 1);
    if (!number) return;
    numbers += (i > 1 ? ", " : "") + std::to_string(*number);
  }
  TORCH_CHECK_VALUE(count == 0, "index {", numbers, "}: a list of integers may mean one element or several rows",
                    "\n  fix   x[\"", numbers, "\"] for ", count > 1 ? "the element (" + numbers + ")" : "row " + numbers,
                    ", x[mh.tensor{", numbers, "}] or x:index_select(0, mh.tensor{", numbers, "}) for rows ", numbers);
}

}  // namespace

std::vector<IndexPart> read_index(lua_State* lua, int index) {
  index = lua_absindex(lua, index);
  IndexPart part;
  if (const auto integer = to_int(lua, index)) {
    part.integer = *integer;
    return {part};
  }
  if (lua_type(lua, index) == LUA_TSTRING) return parse_index(lua_tostring(lua, index));
  if (const at::Tensor* tensor = to_tensor(lua, index)) {
    part.kind = IndexPart::kTensor;
    part.tensor = *tensor;
    return {part};
  }
  TORCH_CHECK_TYPE(lua_istable(lua, index),
                   "index: wanted an integer, a string such as \"0, :, 2:5\", a tensor or a ",
                   "list of these, got ", describe(lua, index));
  refuse_ambiguous(lua, index);
  std::vector<IndexPart> parts;
  for (lua_Integer i = 1; i <= static_cast<lua_Integer>(lua_rawlen(lua, index)); ++i) {
    lua_rawgeti(lua, index, i);
    if (lua_istable(lua, -1)) {
      part = {};
      part.kind = IndexPart::kTensor;
      part.tensor = at::tensor(check_int_list(lua, -1), at::kLong);
      parts.push_back(part);
    } else if (is_nil(lua, -1)) {
      part = {};
      part.kind = IndexPart::kNewAxis;
      parts.push_back(part);
    } else {
      for (IndexPart& inner : read_index(lua, -1)) parts.push_back(std::move(inner));
    }
    lua_pop(lua, 1);
  }
  return parts;
}

at::Tensor get_index(const at::Tensor& tensor, const std::vector<IndexPart>& parts) {
  const Selected selected = select_view(tensor, parts);
  if (selected.has_tensor) return at::index(selected.view, selected.indices);
  return selected.view.is_same(tensor) ? at::alias(tensor) : selected.view;
}

namespace {

bool selects_by_tensor(const std::vector<IndexPart>& parts) {
  return std::any_of(parts.begin(), parts.end(), [](const IndexPart& part) { return part.kind == IndexPart::kTensor; });
}

}  // namespace

void set_index(const at::Tensor& tensor, const std::vector<IndexPart>& parts, const at::Tensor& value) {
  if (selects_by_tensor(parts)) {
    Selected target = select_view(tensor, parts);
    target.view.index_put_(target.indices, value.to(target.view.scalar_type()));
    return;
  }
  const Selected target = select_view(tensor, parts, true);
  const std::vector<int64_t>& rows = target.integer_dims;
  std::vector<int64_t> shape;
  for (int64_t dim = 0; dim < target.view.dim(); ++dim) {
    if (std::find(rows.begin(), rows.end(), dim) == rows.end()) shape.push_back(target.view.size(dim));
  }
  at::Tensor fitting = value;
  while (fitting.dim() > static_cast<int64_t>(shape.size()) && fitting.size(0) == 1) fitting = fitting.squeeze(0);
  TORCH_CHECK_VALUE(at::is_expandable_to(fitting.sizes(), shape), "index: a value of shape ",
                    value.sizes(), " does not fit the selected shape ", at::IntArrayRef(shape));
  fitting = fitting.expand(shape);
  for (const int64_t dim : rows) fitting = fitting.unsqueeze(dim);
  target.view.copy_(fitting);
}

void set_index(const at::Tensor& tensor, const std::vector<IndexPart>& parts, const at::Scalar& value) {
  if (selects_by_tensor(parts)) {
    Selected target = select_view(tensor, parts);
    target.view.index_put_(target.indices,
                           at::scalar_tensor(value, at::device(target.view.device()).dtype(target.view.scalar_type())));
    return;
  }
  select_view(tensor, parts, true).view.fill_(value);
}

}  // namespace moonhalo::scripting
