// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/support/letters.h"

namespace moonhalo {
namespace {

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t end; (end = text.find(',')) != std::string_view::npos; text.remove_prefix(end + 1)) {
    parts.push_back(text.substr(0, end));
  }
  parts.push_back(text);
  return parts;
}

}  // namespace

Letters::Letters(std::string_view text) {
  const size_t arrow = text.find("->");
  inputs = split(text.substr(0, arrow));
  if (arrow != std::string_view::npos) outputs = split(text.substr(arrow + 2));
}

bool LetterExtents::match_extent(char letter, int64_t extent) {
  if (has(letter)) return at(letter) == extent;
  letters_ += letter;
  extents_.push_back(extent);
  return true;
}

std::vector<int> LetterExtents::numbers(std::string_view letters) const {
  std::vector<int> result;
  for (const char letter : letters) result.push_back(static_cast<int>(letters_.find(letter)));
  return result;
}

}  // namespace moonhalo
