// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/slices.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo::io {
namespace {

constexpr const char* kFix = "\n  fix   one part per dimension, as \"0:100, :, 2:9:3, -1\" or \"..., 5\"";

std::string_view trim(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\n'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(trim(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// One part of a slice string, with what its errors need to say.
struct Part {
  std::string_view text;
  int64_t dim;
  c10::IntArrayRef shape;
  const std::string& whole_text;
  const std::string& what;

  [[noreturn]] void fail(const std::string& problem) const {
    TORCH_CHECK_VALUE(false, "select: \"", whole_text, "\" on ", what, ": ", problem,
                      "\n  have  shape ", shape_string(shape), kFix);
  }

  std::optional<int64_t> number(std::string_view digits) const {
    if (digits.empty()) return std::nullopt;
    if (digits.front() == '+') digits.remove_prefix(1);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      fail("\"" + std::string(text) + "\" is not an index or a slice");
    }
    return value;
  }

  Slice index() const {
    const auto value = number(text);
    if (!value) fail("part " + std::to_string(dim + 1) + " is empty");
    const int64_t extent = shape[dim];
    const int64_t at = *value < 0 ? *value + extent : *value;
    if (at < 0 || at >= extent) {
      fail("index " + std::to_string(*value) + " is out of range for dim " + std::to_string(dim) + " of size " +
           std::to_string(extent));
    }
    return {at, 1, 1, true};
  }

  Slice slice() const {
    const auto numbers = split(text, ':');
    if (numbers.size() > 3) fail("\"" + std::string(text) + "\" has more than two colons");
    const int64_t extent = shape[dim];
    const auto bound = [&](std::string_view digits, int64_t otherwise) {
      const int64_t value = number(digits).value_or(otherwise);
      return std::clamp<int64_t>(value < 0 ? value + extent : value, 0, extent);
    };
    const int64_t step = numbers.size() == 3 ? number(numbers[2]).value_or(1) : 1;
    if (step < 1) fail("step " + std::to_string(step) + " is not positive");
    const int64_t begin = bound(numbers[0], 0);
    const int64_t end = bound(numbers[1], extent);
    return {begin, end > begin ? (end - begin - 1) / step + 1 : 0, step, false};
  }
};

}  // namespace

std::vector<Slice> whole(c10::IntArrayRef shape) {
  std::vector<Slice> slices;
  for (const int64_t extent : shape) slices.push_back({0, extent, 1, false});
  return slices;
}

std::vector<Slice> parse_slices(const std::string& text, c10::IntArrayRef shape, const std::string& what) {
  const auto parts = split(text, ',');
  const auto ndim = static_cast<int64_t>(shape.size());
  const auto ellipses = std::count(parts.begin(), parts.end(), std::string_view("..."));
  const auto named = static_cast<int64_t>(parts.size()) - ellipses;
  const Part all{text, 0, shape, text, what};
  if (trim(text).empty()) all.fail("nothing is selected");
  if (ellipses > 1) all.fail("more than one \"...\"");
  if (named > ndim) {
    all.fail(std::to_string(named) + " parts for " + std::to_string(ndim) + " dimensions");
  }

  std::vector<Slice> slices = whole(shape);
  int64_t dim = 0;
  for (const auto part : parts) {
    if (part == "...") {
      dim += ndim - named;
      continue;
    }
    const Part one{part, dim, shape, text, what};
    slices[dim] = part.find(':') == std::string_view::npos ? one.index() : one.slice();
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
