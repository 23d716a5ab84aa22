// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace re2 {
class RE2;
}

namespace moonhalo {

/// True if `name` fits a pattern with * (any text) and ? (any character), neither of which crosses a dot. Time: at most
/// the product of the lengths.
bool glob_fits(std::string_view pattern, std::string_view name);

/// A regular expression over whole names, by RE2, which never backtracks: fits() takes at most the product of the
/// lengths. It has RE2's syntax for bytes: literals, ., [a-z], [^...], ( ), (?: ), |, *, +, ?, {2,5}, ^, $. Escapes are
/// \d \w \s \D \W \S and \ before anything but a letter or digit; a % does what \ does, and %a, %l, %u are Lua's
/// letters. ValueError for all else (references back, looking ahead), and for expressions that are longer than 4000
/// characters or repeat to more than some thousand: the text and what is wrong.
class NameRegex {
 public:
  explicit NameRegex(const std::string& text);
  bool fits(std::string_view name) const;

 private:
  std::shared_ptr<const re2::RE2> regex_;
};

/// A name in a plan: exact, a glob, or a regular expression when it holds \ or %.
class NamePattern {
 public:
  explicit NamePattern(const std::string& text);
  bool fits(const std::string& name) const;
  /// The larger of two that fit is meant.
  std::pair<int, int64_t> weight() const { return {rank_, literals_}; }

 private:
  std::string text_;
  std::optional<NameRegex> regex_;
  int rank_ = 0;
  int64_t literals_ = 0;
};

/// The parts of an error about a pattern that fits no name.
struct NoMatch {
  std::string nearest;  ///< "; did you mean 'fc1'?", or ""
  std::string have;     ///< the first names, and how the pattern was read where that is not plain
  std::string fix;      ///< "correct the name", with a pattern that fits where it was one
};
NoMatch explain_no_match(const std::string& pattern, const std::vector<std::string>& names);

/// Finds which of several patterns each of several names means.
struct NameMatches {
  struct Tie {
    int64_t name, first, second;  ///< two patterns that fit the name equally well
  };
  std::vector<int64_t> meant;  ///< per name: the pattern that fits best, -1 where none does
  std::vector<bool> used;      ///< per pattern: whether it fits any name
  std::vector<Tie> ties;
};
NameMatches match_names(const std::vector<std::string>& patterns, const std::vector<std::string>& names);

}  // namespace moonhalo
