// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/slices.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "moonhalo/engine/base/slice_text.h"
#include "moonhalo/engine/base/text.h"

namespace moonhalo::io {
namespace {

constexpr const char* kFix = "\n  fix   one part per dimension, as \"0:100, :, 2:9:3, -1\" or \"..., 5\"";

Slice slice_of(const SlicePart& part, int64_t extent) {
  const auto bound = [&](int64_t value) { return std::clamp<int64_t>(value < 0 ? value + extent : value, 0, extent); };
  const int64_t begin = bound(part.start.value_or(0)), end = bound(part.stop.value_or(extent));
  const int64_t step = part.step.value_or(1);
  return {begin, end > begin ? (end - begin - 1) / step + 1 : 0, step, false};
}

}  // namespace

std::vector<Slice> whole(c10::IntArrayRef shape) {
  std::vector<Slice> slices;
  for (const int64_t extent : shape) slices.push_back({0, extent, 1, false});
  return slices;
}

std::vector<Slice> parse_slices(const std::string& text, c10::IntArrayRef shape, const std::string& what) {
  const auto message = [&](const std::string& problem) {
    return "select: \"" + text + "\" on " + what + ": " + problem + "\n  have  shape " + shape_string(shape) + kFix;
  };
  const std::vector<SlicePart> parts = parse_slice_text(text, message);
  const auto ndim = static_cast<int64_t>(shape.size());
  const auto named = std::count_if(parts.begin(), parts.end(),
                                   [](const SlicePart& part) { return part.kind != SlicePart::kEllipsis; });
  TORCH_CHECK_VALUE(named <= ndim,
                    message(std::to_string(named) + " parts for " + std::to_string(ndim) + " dimensions"));

  std::vector<Slice> slices = whole(shape);
  int64_t dim = 0;
  for (const SlicePart& part : parts) {
    TORCH_CHECK_VALUE(part.kind != SlicePart::kNewAxis, message("None adds a dimension, which a selection cannot"));
    if (part.kind == SlicePart::kEllipsis) {
      dim += ndim - named;
      continue;
    }
    const int64_t extent = shape[dim];
    if (part.kind == SlicePart::kSlice) {
      slices[dim] = slice_of(part, extent);
    } else {
      const int64_t at = part.integer < 0 ? part.integer + extent : part.integer;
      TORCH_CHECK_VALUE(at >= 0 && at < extent,
                        message("index " + std::to_string(part.integer) + " is out of range for dim " +
                                std::to_string(dim) + " of size " + std::to_string(extent)));
      slices[dim] = {at, 1, 1, true};
    }
    ++dim;
  }
  return slices;
}

std::vector<int64_t> sliced_shape(const std::vector<Slice>& slices) {
  std::vector<int64_t> shape;
  for (const auto& slice : slices) {
    if (!slice.dropped) shape.push_back(slice.count);
  }
  return shape;
}

std::vector<Slice> compose(const std::vector<Slice>& outer, const std::vector<Slice>& inner) {
  std::vector<Slice> result;
  size_t next = 0;
  for (const auto& base : outer) {
    if (base.dropped) {
      result.push_back(base);
      continue;
    }
    const Slice& more = inner[next++];
    result.push_back({base.begin + more.begin * base.step, more.count, base.step * more.step, more.dropped});
  }
  return result;
}

}  // namespace moonhalo::io
