// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moonhalo {

/// The dims of an operator's tensors, a letter each, as an einsum writes them: "bmk,bkn->bmn". Points into the text.
struct Letters {
  explicit Letters(std::string_view text);
  std::vector<std::string_view> inputs;
  std::optional<std::vector<std::string_view>> outputs;  ///< absent without an arrow
};

/// The extents that letters stand for. Letters are numbered in the order in which they appear.
class LetterExtents {
 public:
  /// False if the letter stands for another extent already, which it keeps.
  bool match_extent(char letter, int64_t extent);
  bool has(char letter) const { return letters_.find(letter) != std::string::npos; }
  int64_t at(char letter) const { return extents_.at(letters_.find(letter)); }
  /// The numbers of letters that have all appeared.
  std::vector<int> numbers(std::string_view letters) const;
  const std::string& letters() const { return letters_; }
  const std::vector<int64_t>& extents() const { return extents_; }

 private:
  std::string letters_;
  std::vector<int64_t> extents_;
};

}  // namespace moonhalo
