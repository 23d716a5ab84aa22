// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/operators/indexing.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include <algorithm>

#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

/// Dimensions of the tensor that a part uses up.
int64_t consumed(const IndexPart& part) {
  if (part.tensor.defined()) return part.tensor.scalar_type() == at::kBool ? part.tensor.dim() : 1;
  return part.kind == SlicePart::kInteger || part.kind == SlicePart::kSlice ? 1 : 0;
}

struct Selected {
  at::Tensor view;
  c10::List<std::optional<at::Tensor>> indices = c10::List<std::optional<at::Tensor>>();
  bool has_tensor = false;
  std::vector<int64_t> integer_dims = {};  // of the view, where integers were kept as slices of one row
};

// The dims that the parts name; throws where they are more than the tensor has.
int64_t check_parts(const at::Tensor& tensor, const std::vector<IndexPart>& parts) {
  int64_t used = 0;
  int ellipses = 0;
  for (const IndexPart& part : parts) {
    used += consumed(part);
    ellipses += part.kind == SlicePart::kEllipsis;
  }
  TORCH_CHECK_VALUE(ellipses <= 1, "index: '...' may stand only once");
  TORCH_CHECK_INDEX(used <= tensor.dim(), "index: too many indices, ", used, " for a tensor of ", tensor.dim(),
                    " dimensions\n  have  shape ", tensor.sizes());
  return used;
}

// Selects a view of a tensor, part by part, and collects the tensors among the parts.
class Selector {
 public:
  Selector(const at::Tensor& tensor, int64_t used, bool keep_integers)
      : tensor_(tensor), used_(used), keep_integers_(keep_integers) {
    selected_.view = tensor;
  }

  void apply(const IndexPart& part) {
    if (part.tensor.defined()) {
      selected_.indices.push_back(part.tensor);
      selected_.has_tensor = true;
      dim_ += consumed(part);
      source_ += consumed(part);
      return;
    }
    switch (part.kind) {
      case SlicePart::kInteger:
        select(part.integer);
        break;
      case SlicePart::kSlice:
        if (part.start || part.stop || part.step) {
          selected_.view = selected_.view.slice(dim_, part.start, part.stop, part.step.value_or(1));
        }
        keep(1);
        break;
      case SlicePart::kNewAxis:
        selected_.view = selected_.view.unsqueeze(dim_);
        keep(1);
        break;
      case SlicePart::kEllipsis:
        keep(tensor_.dim() - used_);
        break;
    }
    source_ += part.kind == SlicePart::kEllipsis ? tensor_.dim() - used_ : consumed(part);
  }

  Selected take() { return std::move(selected_); }

 private:
  void keep(int64_t dims) {
    for (int64_t i = 0; i < dims; ++i) selected_.indices.push_back(std::nullopt);
    dim_ += dims;
  }

  void select(int64_t index) {
    const int64_t size = selected_.view.size(dim_);
    TORCH_CHECK_INDEX(index >= -size && index < size, "index ", index, " is out of range for dimension ", source_,
                      " of size ", size, "\n  have  shape ", tensor_.sizes(), "\n  fix   ",
                      size == 0 ? "the dimension is empty"
                                : "indices go from 0 to " + std::to_string(size - 1) + ", from the end from -1 to -" +
                                      std::to_string(size));
    if (!keep_integers_) {
      selected_.view = selected_.view.select(dim_, index);
      return;
    }
    const int64_t row = index < 0 ? index + size : index;
    selected_.view = selected_.view.slice(dim_, row, row + 1);
    selected_.integer_dims.push_back(dim_);
    keep(1);
  }

  const at::Tensor& tensor_;
  int64_t used_;
  bool keep_integers_;
  Selected selected_;
  int64_t dim_ = 0;     // of the view so far
  int64_t source_ = 0;  // of the tensor, for messages
};

/// keep_integers   x[3] as x[3:4]: a block of a cut dimension can be written through a slice, not
/// through a row
Selected select_view(const at::Tensor& tensor, const std::vector<IndexPart>& parts, bool keep_integers = false) {
  Selector selector(tensor, check_parts(tensor, parts), keep_integers);
  for (const IndexPart& part : parts) selector.apply(part);
  return selector.take();
}

std::vector<IndexPart> parse_index(std::string_view text) {
  const auto message = [text](const std::string& problem) {
    return "index \"" + std::string(text) + "\": " + problem +
           "\n  fix   write integers, start:stop:step, ... or None between commas; x:flip(dim) turns a dimension round";
  };
  std::vector<IndexPart> parts;
  for (const SlicePart& part : parse_slice_text(text, message)) parts.push_back({part, {}});
  return parts;
}

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
                    "\n  fix   x[\"", numbers, "\"] for ",
                    count > 1 ? "the element (" + numbers + ")" : "row " + numbers, ", x[mh.tensor{", numbers,
                    "}] or x:index_select(0, mh.tensor{", numbers, "}) for rows ", numbers);
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
    part.tensor = *tensor;
    return {part};
  }
  TORCH_CHECK_TYPE(lua_istable(lua, index),
                   "index: expected an integer, a string such as \"0, :, 2:5\", a tensor or a ", "list of these, got ",
                   describe(lua, index));
  refuse_ambiguous(lua, index);
  std::vector<IndexPart> parts;
  for (lua_Integer i = 1; i <= static_cast<lua_Integer>(lua_rawlen(lua, index)); ++i) {
    lua_rawgeti(lua, index, i);
    if (lua_istable(lua, -1)) {
      part = {};
      part.tensor = at::tensor(check_int_list(lua, -1), at::kLong);
      parts.push_back(part);
    } else if (is_nil(lua, -1)) {
      part = {};
      part.kind = SlicePart::kNewAxis;
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
  return std::any_of(parts.begin(), parts.end(), [](const IndexPart& part) { return part.tensor.defined(); });
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
  TORCH_CHECK_VALUE(
      at::is_expandable_to(fitting.sizes(), shape), "index: a value of shape ", value.sizes(),
      " does not fit the selected shape ", at::IntArrayRef(shape),
      "\n  fix   dims are matched from the last one: give a value of that shape, or with 1 for dims that repeat it");
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
