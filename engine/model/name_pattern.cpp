// SPDX-License-Identifier: Apache-2.0
// Plans come from files: std::regex and a recursive glob need exponential time or endless stack for some, so neither is
// used.
#include "moonhalo/engine/model/name_pattern.h"

#include <c10/util/Exception.h>
#include <re2/re2.h>

#include <algorithm>
#include <cctype>

#include "moonhalo/engine/base/text.h"
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
      "\n  fix   patterns are \"blocks.*.fc?\", or regular expressions of whole names: \"blocks%.%d+%.fc[12]\" fits "
      "'blocks.0.fc1'");
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

bool is_regex(std::string_view text) { return text.find_first_of("\\%") != std::string_view::npos; }

/// `text` with `by` in the place of each `what` that is outside of classes and not escaped.
std::string replaced(std::string_view text, char what, std::string_view by) {
  std::string result;
  bool in_class = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((c == '\\' || c == '%') && i + 1 < text.size()) {
      result += c;
      result += text[++i];
    } else if (c == what && !in_class) {
      result += by;
    } else {
      in_class = c == '[' || (in_class && c != ']');
      result += c;
    }
  }
  return result;
}

/// The text that a regular expression is nearest to: digits for %d, and no repeats.
std::string literals_of(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((c == '\\' || c == '%') && i + 1 < text.size()) {
      const char next = text[++i];
      result += next == 'd' ? '0' : next;
    } else if (std::string_view("+*?-[](){}|^$").find(c) == std::string_view::npos) {
      result += c;
    }
  }
  return result;
}

/// A regular expression for a name and those that differ in numbers: "blocks%.%d+%.fc1" of "blocks.0.fc1".
std::string regex_like(std::string_view name) {
  std::string result;
  for (size_t i = 0; i < name.size(); ++i) {
    const auto byte = static_cast<unsigned char>(name[i]);
    if (std::isdigit(byte)) {
      while (i + 1 < name.size() && std::isdigit(static_cast<unsigned char>(name[i + 1]))) ++i;
      result += "%d+";
    } else {
      if (byte < 128 && !std::isalnum(byte) && byte != '_') result += '%';
      result += name[i];
    }
  }
  return result;
}

/// The same as a glob: "blocks.*.fc1".
std::string glob_like(std::string_view name) {
  std::string result;
  while (true) {
    const size_t dot = name.find('.');
    const std::string_view part = name.substr(0, dot);
    result += !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos ? "*" : part;
    if (dot == std::string_view::npos) return result;
    result += '.';
    name.remove_prefix(dot + 1);
  }
}

std::string first_names(const std::vector<std::string>& names) {
  constexpr size_t kShown = 12;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kShown; ++i) text += (i ? ", " : "") + ("'" + names[i] + "'");
  return names.size() > kShown ? text + ", ..." : text;
}

re2::RE2::Options regex_options() {
  re2::RE2::Options options;
  options.set_encoding(re2::RE2::Options::EncodingLatin1);
  options.set_dot_nl(true);
  options.set_never_capture(true);
  options.set_log_errors(false);
  options.set_max_mem(kMostBytes);
  return options;
}

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
  const auto regex = std::make_shared<const re2::RE2>(Re2Text(text).run(), regex_options());
  if (!regex->ok()) {
    const std::string what = regex->error().substr(0, regex->error().find(": ")), &piece = regex->error_arg();
    const bool whole = piece.empty() || piece.size() >= regex->pattern().size();
    refuse(text, 0, whole ? what : what + ": " + shortened(piece, 0));
  }
  regex_ = regex;
}

bool NameRegex::fits(std::string_view name) const { return re2::RE2::FullMatch(name, *regex_); }

NamePattern::NamePattern(const std::string& text) : text_(text) {
  if (is_regex(text)) {
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

NoMatch explain_no_match(const std::string& pattern, const std::vector<std::string>& names) {
  const bool regex = is_regex(pattern), glob = !regex && pattern.find_first_of("*?") != std::string::npos;
  NoMatch text{did_you_mean(pattern, names), first_names(names), "correct the name"};
  if (!regex && pattern.find_first_of("*?+[](){}|^$") == std::string::npos) return text;
  const std::string quoted = "\n        '" + pattern + "' is ", plain = literals_of(pattern);
  if (text.nearest.empty()) text.nearest = did_you_mean(plain, names);
  std::vector<std::string> others;  // patterns that may fit, the likeliest first
  if (regex) {
    const std::string repeats = replaced(pattern, '-', "*");
    const bool has_dash = repeats != pattern;
    text.have += quoted + "a regular expression of a whole name" + (has_dash ? ", where - is a dash: * repeats" : "");
    if (has_dash) others.push_back(repeats);
  } else {
    text.have += quoted + (glob ? "a name in which * and ? stand for text without dots"
                                : "an exact name: a regular expression has a % or a \\");
    if (!glob || pattern.find_first_of("+[](){}|^$") != std::string::npos)
      others.push_back(replaced(pattern, '.', "%."));
  }
  const auto add = [&](const std::string& name) { others.push_back(glob ? glob_like(name) : regex_like(name)); };
  for (const std::string& name : nearest_names(plain, names, 1)) add(name);
  const auto numbered = std::find_if(names.begin(), names.end(), [](const std::string& name) {
    return name.find_first_of("0123456789") != std::string::npos;
  });
  if (numbered != names.end()) add(*numbered);
  for (const std::string& other : others) {
    // The pattern that was given may not be a right one where it is read otherwise.
    if (is_regex(other) && !re2::RE2(Re2Text(other).run(), regex_options()).ok()) continue;
    const NamePattern fits(other);
    const auto name = std::find_if(names.begin(), names.end(), [&](const auto& one) { return fits.fits(one); });
    if (name == names.end()) continue;
    text.fix += ": \"" + other + "\" fits '" + *name + "'";
    break;
  }
  return text;
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
