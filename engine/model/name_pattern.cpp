// SPDX-License-Identifier: Apache-2.0
// Plans come from files: std::regex and a recursive glob need exponential time or endless stack for some, so neither is
// used.
#include "moonhalo/engine/model/name_pattern.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cctype>
#include <functional>

#include "moonhalo/engine/base/text_place.h"

namespace moonhalo {
namespace {

constexpr size_t kMostSteps = 4000;
constexpr int kDeepest = 100;
constexpr int64_t kMostRepeats = 1000;

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

std::bitset<256> set_of(const std::function<bool(int)>& holds) {
  std::bitset<256> set;
  for (int c = 0; c < 256; ++c) set[c] = holds(c);
  return set;
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

class NameRegexParser {
 public:
  using Kind = NameRegex::Kind;
  using Step = NameRegex::Step;

  explicit NameRegexParser(const std::string& text) : text_(text) {}

  std::vector<Step> run() {
    either(0);
    if (at_ < text_.size()) fail("an unopened )");
    return std::move(steps_);
  }

 private:
  // Addresses are relative, so that a piece of program can be moved and copied.
  void either(int depth) {
    if (depth > kDeepest) fail("it is nested deeper than " + std::to_string(kDeepest) + " levels");
    std::vector<size_t> jumps;
    const size_t begin = steps_.size();
    size_t branch = begin;
    sequence(depth);
    while (take('|')) {
      insert(branch, {.kind = Kind::kSplit, .by = 1, .other = static_cast<int64_t>(steps_.size() - branch + 2)});
      jumps.push_back(steps_.size());
      add({.kind = Kind::kJump});
      branch = steps_.size();
      sequence(depth);
    }
    for (const size_t jump : jumps) steps_[jump].by = static_cast<int64_t>(steps_.size() - jump);
  }

  void sequence(int depth) {
    while (at_ < text_.size() && text_[at_] != '|' && text_[at_] != ')') {
      const size_t begin = steps_.size();
      const bool repeatable = atom(depth);
      repeat(begin, repeatable);
    }
  }

  bool atom(int depth) {
    const char c = text_[at_++];
    switch (c) {
      case '(':
        if (take('?') && !take(':')) fail("only (?: ) is known of what begins with (?");
        either(depth + 1);
        if (!take(')')) fail("an unclosed (");
        return true;
      case '[':
        add({.set = bracket()});
        return true;
      case '.':
        add({.set = std::bitset<256>().set()});
        return true;
      case '^':
        add({.kind = Kind::kBegin});
        return false;
      case '$':
        add({.kind = Kind::kEnd});
        return false;
      case '\\':
      case '%':
        add({.set = escaped(c)});
        return true;
      case '*':
      case '+':
      case '?':
      case '{':
        --at_;
        fail(std::string("nothing to repeat before ") + c);
      default:
        add({.set = set_of([c](int other) { return other == static_cast<unsigned char>(c); })});
        return true;
    }
  }

  void repeat(size_t begin, bool repeatable) {
    if (at_ >= text_.size() || std::string_view("*+?{").find(text_[at_]) == std::string_view::npos) return;
    if (!repeatable) fail("a place cannot be repeated");
    int64_t least = 0, most = -1;  // -1: any number
    const char c = text_[at_++];
    if (c == '+') least = 1;
    if (c == '?') most = 1;
    if (c == '{') {
      least = most = count();
      if (take(',')) most = at_ < text_.size() && text_[at_] != '}' ? count() : -1;
      if (!take('}')) fail("an unclosed {");
      if (most >= 0 && most < least) fail("the second number is smaller");
    }
    take('?');  // lazy: the same, as the whole name has to fit
    if (at_ < text_.size() && std::string_view("*+?{").find(text_[at_]) != std::string_view::npos)
      fail("a repeat of a repeat");
    const std::vector<Step> once(steps_.begin() + static_cast<std::ptrdiff_t>(begin), steps_.end());
    const auto length = static_cast<int64_t>(once.size());
    steps_.resize(begin);
    for (int64_t i = 0; i < least; ++i) copy(once);
    if (most < 0) {
      add({.kind = Kind::kSplit, .by = 1, .other = length + 2});
      copy(once);
      add({.kind = Kind::kJump, .by = -length - 1});
    }
    for (int64_t i = least; i < most; ++i) {
      add({.kind = Kind::kSplit, .by = 1, .other = length + 1});
      copy(once);
    }
  }

  int64_t count() {
    const size_t begin = at_;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) ++at_;
    if (at_ == begin) fail("a number is missing");
    if (at_ - begin > 4 || std::stoll(text_.substr(begin, at_ - begin)) > kMostRepeats) {
      at_ = begin;
      fail("more than " + std::to_string(kMostRepeats) + " repeats");
    }
    return std::stoll(text_.substr(begin, at_ - begin));
  }

  std::bitset<256> bracket() {
    const bool others = take('^');
    std::bitset<256> set;
    while (!take(']')) {
      if (at_ >= text_.size()) fail("an unclosed [");
      const char first = text_[at_++];
      if (first == '[' && at_ < text_.size() && text_[at_] == ':') fail("no [: :], write \\d, \\w or the characters");
      if (first == '\\' || first == '%') {
        set |= escaped(first);
        continue;
      }
      char last = first;
      if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        last = text_[at_ + 1];
        if (last == '\\' || last == '%' || static_cast<unsigned char>(last) < static_cast<unsigned char>(first))
          fail("a range without an end");
        at_ += 2;
      }
      for (int c = static_cast<unsigned char>(first); c <= static_cast<unsigned char>(last); ++c) set.set(c);
    }
    return others ? ~set : set;
  }

  std::bitset<256> escaped(char by) {
    if (at_ >= text_.size()) fail(std::string("nothing after the last ") + by);
    const char c = text_[at_++];
    const auto word = [](int other) { return other < 128 && (std::isalnum(other) || other == '_'); };
    if (by == '%' && c == 'a') return set_of([](int other) { return other < 128 && std::isalpha(other); });
    if (by == '%' && c == 'l') return set_of([](int other) { return other < 128 && std::islower(other); });
    if (by == '%' && c == 'u') return set_of([](int other) { return other < 128 && std::isupper(other); });
    switch (c) {
      case 'd':
        return set_of([](int other) { return other < 128 && std::isdigit(other); });
      case 'D':
        return ~set_of([](int other) { return other < 128 && std::isdigit(other); });
      case 'w':
        return set_of(word);
      case 'W':
        return ~set_of(word);
      case 's':
        return set_of([](int other) { return other < 128 && std::isspace(other); });
      case 'S':
        return ~set_of([](int other) { return other < 128 && std::isspace(other); });
      default:
        break;
    }
    if (std::isalnum(static_cast<unsigned char>(c))) fail(std::string(1, by) + c + " is not known");
    return set_of([c](int other) { return other == static_cast<unsigned char>(c); });
  }

  void copy(const std::vector<Step>& piece) {
    for (const Step& step : piece) add(step);
  }

  void add(const Step& step) {
    if (steps_.size() >= kMostSteps) fail("it repeats to more than " + std::to_string(kMostSteps) + " characters");
    steps_.push_back(step);
  }

  void insert(size_t where, const Step& step) {
    add(step);
    std::rotate(steps_.begin() + static_cast<std::ptrdiff_t>(where), steps_.end() - 1, steps_.end());
  }

  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  [[noreturn]] void fail(const std::string& what) const {
    TORCH_CHECK_VALUE(
        false, "parallelize_module: ", shortened(text_, at_), " is not a valid pattern: ", what, " at character ",
        at_ + 1, "\n  fix   patterns are \"blocks.*.fc?\", or regular expressions as \"blocks\\\\.\\\\d+\\\\.fc[12]\"");
  }

  const std::string& text_;
  size_t at_ = 0;
  std::vector<Step> steps_;
};

NameRegex::NameRegex(const std::string& text) : steps_(NameRegexParser(text).run()) {}

// All ways through the expression are walked side by side, a character of the name at a time.
bool NameRegex::fits(std::string_view name) const {
  const auto end = static_cast<int64_t>(steps_.size());
  std::vector<size_t> reached(steps_.size() + 1, 0);
  std::vector<int64_t> now, next, open;
  const auto reach = [&](std::vector<int64_t>& list, int64_t from, size_t position) {
    open.push_back(from);
    while (!open.empty()) {
      const int64_t at = open.back();
      open.pop_back();
      if (reached[at] == position + 1) continue;
      reached[at] = position + 1;
      if (at == end) {
        list.push_back(at);
        continue;
      }
      const Step& step = steps_[at];
      switch (step.kind) {
        case Kind::kCharacter:
          list.push_back(at);
          break;
        case Kind::kSplit:
          open.push_back(at + step.other);
          [[fallthrough]];
        case Kind::kJump:
          open.push_back(at + step.by);
          break;
        case Kind::kBegin:
          if (position == 0) open.push_back(at + 1);
          break;
        case Kind::kEnd:
          if (position == name.size()) open.push_back(at + 1);
          break;
      }
    }
  };
  reach(now, 0, 0);
  for (size_t i = 0; i < name.size(); ++i) {
    next.clear();
    for (const int64_t at : now) {
      if (at < end && steps_[at].set[static_cast<unsigned char>(name[i])]) reach(next, at + 1, i + 1);
    }
    std::swap(now, next);
  }
  return std::find(now.begin(), now.end(), end) != now.end();
}

NamePattern::NamePattern(const std::string& text) : text_(text) {
  if (text.find_first_of("\\%") != std::string::npos) {
    regex_.emplace_back(text);
  } else {
    rank_ = text.find_first_of("*?") != std::string::npos ? 1 : 2;
  }
  literals_ = std::count_if(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c); });
}

bool NamePattern::fits(const std::string& name) const {
  if (!regex_.empty()) return regex_[0].fits(name);
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
