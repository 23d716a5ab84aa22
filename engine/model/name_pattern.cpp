// SPDX-License-Identifier: Apache-2.0
// Plans come from files: std::regex and a recursive glob need exponential time or endless stack for some, so neither is
// used.
#include "moonhalo/engine/model/name_pattern.h"

#include <c10/util/Exception.h>
#include <re2/re2.h>

#include <algorithm>
#include <cctype>

#include "moonhalo/engine/base/text_place.h"

namespace moonhalo {
namespace {

constexpr size_t kLongest = 4000;        // characters of a regular expression
constexpr int64_t kMostBytes = 1 << 20;  // of a compiled one

bool part_fits(std::string_view pattern, std::string_view part) {
  constexpr size_t kNone = std::string_view::npos;
  size_t p = 0, n = 0, star = kNone, retry = 0;
  while (n < part.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == part[n])) {
      ++p, ++n;
    } else if (star != kNone) {
      // Only the last star may have to take more: what an earlier one could give, this one can take.
      p = star + 1;
      n = ++retry;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == kNone;
}

[[noreturn]] void refuse(const std::string& text, size_t at, const std::string& what) {
  TORCH_CHECK_VALUE(
      false, "parallelize_module: ", shortened(text, at), " is not a valid pattern: ", what,
      "\n  fix   patterns are \"blocks.*.fc?\", or regular expressions as \"blocks\\\\.\\\\d+\\\\.fc[12]\"");
}

/// Writes a regular expression in the syntax of RE2.
class Re2Text {
 public:
  explicit Re2Text(const std::string& text) : text_(text) {}

  std::string run() {
    for (at_ = 0; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\\' || c == '%') {
        escape(c);
      } else if (place_ != kOutside) {
        in_class(c);
      } else if (c == '[') {
        begin_class();
      } else {
        pattern_ += c;
      }
    }
    return std::move(pattern_);
  }

 private:
  /// Where the next character is: in a class [ ] it may follow one that can begin a range, or the dash of a range.
  enum Place { kOutside, kItem, kAfterCharacter, kAfterDash };

  void escape(char by) {
    if (++at_ == text_.size()) refuse(text_, at_, std::string("nothing follows the last ") + by);
    const char c = text_[at_];
    const auto byte = static_cast<unsigned char>(c);
    if (by == '%' && (c == 'a' || c == 'l' || c == 'u')) {
      const std::string letters = c == 'a' ? "[:alpha:]" : c == 'l' ? "[:lower:]" : "[:upper:]";
      add_set(place_ == kOutside ? "[" + letters + "]" : letters);
    } else if (byte < 128 && std::isalnum(byte)) {
      if (std::string_view("dDsSwW").find(c) == std::string_view::npos)
        refuse(text_, at_, std::string{by, c} + " is not known at character " + std::to_string(at_));
      add_set({'\\', c});
    } else {
      add_character(byte < 128 ? std::string{'\\', c} : std::string{c});
    }
  }

  void begin_class() {
    pattern_ += '[';
    place_ = kItem;
    if (text_.compare(at_ + 1, 1, "^") == 0) pattern_ += text_[++at_];
    if (text_.compare(at_ + 1, 1, "]") != 0) return;
    ++at_;
    add_character("\\]");
  }

  void in_class(char c) {
    const size_t end = text_.compare(at_, 2, "[:") == 0 ? text_.find(":]", at_ + 2) : std::string::npos;
    if (c == ']') {
      pattern_ += c;
      place_ = kOutside;
    } else if (end != std::string::npos) {
      add_set(text_.substr(at_, end + 2 - at_));
      at_ = end + 1;
    } else if (c == '-' && place_ == kAfterCharacter && text_.compare(at_ + 1, 1, "]") != 0) {
      pattern_ += c;
      place_ = kAfterDash;
    } else {
      add_character(c == '-' ? "\\-" : std::string{c});
    }
  }

  void add_set(const std::string& set) {
    if (place_ == kAfterDash) refuse(text_, at_, "a range without an end at character " + std::to_string(at_));
    pattern_ += set;
    if (place_ != kOutside) place_ = kItem;
  }

  void add_character(const std::string& character) {
    pattern_ += character;
    if (place_ != kOutside) place_ = place_ == kAfterDash ? kItem : kAfterCharacter;
  }

  const std::string& text_;
  size_t at_ = 0;
  std::string pattern_;
  Place place_ = kOutside;
};

}  // namespace

bool glob_fits(std::string_view pattern, std::string_view name) {
  while (true) {
    const size_t p = pattern.find('.'), n = name.find('.');
    if (!part_fits(pattern.substr(0, p), name.substr(0, n))) return false;
    if (p == std::string_view::npos || n == std::string_view::npos) return p == n;
    pattern.remove_prefix(p + 1);
    name.remove_prefix(n + 1);
  }
}

NameRegex::NameRegex(const std::string& text) {
  // RE2 unrolls repeats before it finds a pattern too large.
  if (text.size() > kLongest) refuse(text, 0, "it has more than " + std::to_string(kLongest) + " characters");
  re2::RE2::Options options;
  options.set_encoding(re2::RE2::Options::EncodingLatin1);
  options.set_dot_nl(true);
  options.set_never_capture(true);
  options.set_log_errors(false);
  options.set_max_mem(kMostBytes);
  const auto regex = std::make_shared<const re2::RE2>(Re2Text(text).run(), options);
  if (!regex->ok()) {
    const std::string what = regex->error().substr(0, regex->error().find(": ")), &piece = regex->error_arg();
    const bool whole = piece.empty() || piece.size() >= regex->pattern().size();
    refuse(text, 0, whole ? what : what + ": " + shortened(piece, 0));
  }
  regex_ = regex;
}

bool NameRegex::fits(std::string_view name) const { return re2::RE2::FullMatch(name, *regex_); }

NamePattern::NamePattern(const std::string& text) : text_(text) {
  if (text.find_first_of("\\%") != std::string::npos) {
    regex_.emplace(text);
  } else {
    rank_ = text.find_first_of("*?") != std::string::npos ? 1 : 2;
  }
  literals_ = std::count_if(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c); });
}

bool NamePattern::fits(const std::string& name) const {
  if (regex_) return regex_->fits(name);
  return rank_ == 2 ? text_ == name : glob_fits(text_, name);
}

NameMatches match_names(const std::vector<std::string>& patterns, const std::vector<std::string>& names) {
  const std::vector<NamePattern> parsed(patterns.begin(), patterns.end());
  const auto count = static_cast<int64_t>(patterns.size());
  NameMatches matches{std::vector<int64_t>(names.size(), -1), std::vector<bool>(patterns.size(), false), {}};
  for (size_t n = 0; n < names.size(); ++n) {
    int64_t& best = matches.meant[n];
    std::vector<int64_t> equals;
    for (int64_t p = 0; p < count; ++p) {
      if (!parsed[p].fits(names[n])) continue;
      matches.used[p] = true;
      if (best < 0 || parsed[best].weight() < parsed[p].weight()) {
        best = p;
        equals.clear();
      } else if (parsed[best].weight() == parsed[p].weight()) {
        equals.push_back(p);
      }
    }
    for (const int64_t other : equals) matches.ties.push_back({static_cast<int64_t>(n), best, other});
  }
  return matches;
}

}  // namespace moonhalo
