// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/slice_text.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>

namespace moonhalo {
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

bool is_new_axis(std::string_view part) { return part == "None" || part == "newaxis"; }

class SliceText {
 public:
  SliceText(std::string_view text, const std::function<std::string(const std::string&)>& message)
      : text_(text), message_(message) {}

  std::vector<SlicePart> read() const {
    if (trimmed(text_).empty()) fail("nothing is selected");
    std::vector<SlicePart> parts;
    for (const std::string_view part : split(text_, ',')) {
      if (part.empty()) fail("part " + std::to_string(parts.size() + 1) + " is empty");
      parts.push_back(read_part(part));
    }
    const auto is_ellipsis = [](const SlicePart& part) { return part.kind == SlicePart::kEllipsis; };
    if (std::count_if(parts.begin(), parts.end(), is_ellipsis) > 1) fail("more than one \"...\"");
    return parts;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const { TORCH_CHECK_VALUE(false, message_(problem)); }

  SlicePart read_part(std::string_view part) const {
    if (part == "...") return {.kind = SlicePart::kEllipsis};
    if (is_new_axis(part)) return {.kind = SlicePart::kNewAxis};
    if (part.find(':') == std::string_view::npos) return {.integer = number(part, part)};
    const std::vector<std::string_view> bounds = split(part, ':');
    if (bounds.size() > 3) fail("\"" + std::string(part) + "\" has more than two colons");
    SlicePart slice{.kind = SlicePart::kSlice};
    std::optional<int64_t>* const fields[] = {&slice.start, &slice.stop, &slice.step};
    for (size_t i = 0; i < bounds.size(); ++i) {
      if (!bounds[i].empty()) *fields[i] = number(bounds[i], part);
    }
    if (slice.step.value_or(1) < 1) fail("step " + std::to_string(*slice.step) + " is not positive");
    return slice;
  }

  int64_t number(std::string_view digits, std::string_view part) const {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      fail("\"" + std::string(part) + "\" is not an index or a slice");
    }
    return value;
  }

  std::string_view text_;
  const std::function<std::string(const std::string&)>& message_;
};

}  // namespace

std::vector<SlicePart> parse_slice_text(std::string_view text,
                                        const std::function<std::string(const std::string& problem)>& message) {
  return SliceText(text, message).read();
}

bool looks_like_slices(std::string_view text) {
  text = trimmed(text);
  return text.empty() || text.find_first_of("0123456789-:.+,") == 0 ||
         is_new_axis(trimmed(text.substr(0, text.find(','))));
}

}  // namespace moonhalo
