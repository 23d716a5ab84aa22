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

/// The escape of RE2 for the two characters of `text` that end at `at`.
std::string re2_escape(const std::string& text, size_t at, bool in_class) {
  const char by = text[at - 1], c = text[at];
  if (by == '%' && (c == 'a' || c == 'l' || c == 'u')) {
    if (in_class && at > 1 && text[at - 2] == '-')
      refuse(text, at, "a range without an end at character " + std::to_string(at));
    const std::string letters = c == 'a' ? "[:alpha:]" : c == 'l' ? "[:lower:]" : "[:upper:]";
    return in_class ? letters : "[" + letters + "]";
  }
  const auto byte = static_cast<unsigned char>(c);
  if (byte >= 128) return {c};
  if (std::isalnum(byte) && std::string_view("dDsSwW").find(c) == std::string_view::npos)
    refuse(text, at, std::string{by, c} + " is not known at character " + std::to_string(at));
  return {'\\', c};
}

/// `text` in the syntax of RE2.
std::string re2_text(const std::string& text) {
  std::string pattern;
  bool in_class = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\' || c == '%') {
      if (++i == text.size()) refuse(text, i, std::string("nothing follows the last ") + c);
      pattern += re2_escape(text, i, in_class);
      continue;
    }
    size_t end = i + 1;  // of what is taken as it is
    if (!in_class && c == '[') {
      in_class = true;
      if (end < text.size() && text[end] == '^') ++end;
      if (end < text.size() && text[end] == ']') ++end;
    } else if (in_class && text.compare(i, 2, "[:") == 0 && text.find(":]", i + 2) != std::string::npos) {
      end = text.find(":]", i + 2) + 2;
    } else if (c == ']') {
      in_class = false;
    }
    pattern.append(text, i, end - i);
    i = end - 1;
  }
  return pattern;
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
  re2::RE2::Options options;
  options.set_encoding(re2::RE2::Options::EncodingLatin1);
  options.set_dot_nl(true);
  options.set_never_capture(true);
  options.set_log_errors(false);
  options.set_max_mem(kMostBytes);
  const auto regex = std::make_shared<const re2::RE2>(re2_text(text), options);
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
