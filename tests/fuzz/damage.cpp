// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/damage.h"

#include <algorithm>
#include <cctype>
#include <cstring>

namespace moonhalo::testing {
namespace {

using Random = std::mt19937_64;

size_t below(Random& random, size_t end) { return end == 0 ? 0 : static_cast<size_t>(random() % end); }

template <class Range>
const auto& one_of(const Range& range, Random& random) {
  return *std::next(std::begin(range), static_cast<std::ptrdiff_t>(below(random, std::size(range))));
}

/// A place and a length, most often short.
std::pair<size_t, size_t> piece(const std::string& bytes, Random& random) {
  const size_t begin = below(random, bytes.size());
  const size_t longest = random() % 4 == 0 ? 4096 : 16;
  return {begin, 1 + below(random, std::min(longest, bytes.size() - begin))};
}

void overwrite(std::string& bytes, Random& random) {
  constexpr int64_t kNumbers[] = {
      0,     -1,         1,       2,          7,           127,          128,       255,
      256,   0x7fffffff, -1 << 8, 0xffffffff, 1ll << 31,   INT64_MAX,    INT64_MIN, 1ll << 40,
      65535, 1ll << 60,  1000,    4096,       0x100000000, 0x0101010101, 3,         100000};
  const size_t at = below(random, bytes.size());
  if (random() % 3 != 0) {
    bytes[at] = static_cast<char>(bytes[at] ^ (random() % 2 ? 1 << random() % 8 : 1 + random() % 255));
    return;
  }
  const int64_t number = random() % 4 == 0
                             ? static_cast<int64_t>(bytes.size()) + static_cast<int64_t>(random() % 17) - 8
                             : one_of(kNumbers, random);
  const size_t length = std::min<size_t>(size_t{1} << random() % 4, bytes.size() - at);
  std::memcpy(bytes.data() + at, &number, length);
}

void change_bytes(std::string& bytes, const std::string& other, Random& random) {
  const auto [begin, length] = piece(bytes, random);
  switch (random() % 8) {
    case 0:
      bytes.erase(begin, length);
      break;
    case 1:
      bytes.insert(begin, bytes.substr(below(random, bytes.size()), length));
      break;
    case 2:
      bytes.insert(begin, length, static_cast<char>(random()));
      break;
    case 3: {
      const auto [from, count] = piece(other, random);
      bytes.replace(begin, random() % 2 ? length : 0, other.substr(from, count));
      break;
    }
    default:
      overwrite(bytes, random);
      break;
  }
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; }

/// The word, or the single character, at a drawn place.
std::pair<size_t, size_t> token(const std::string& text, Random& random) {
  size_t begin = below(random, text.size()), end = begin + 1;
  if (begin < text.size() && is_word(text[begin])) {
    while (begin > 0 && is_word(text[begin - 1])) --begin;
    while (end < text.size() && is_word(text[end])) ++end;
  }
  return {begin, end - begin};
}

void change_text(std::string& text, const std::string& other, const std::vector<std::string>& words, Random& random) {
  const auto [begin, length] = token(text, random);
  const std::string& word = one_of(words, random);
  switch (random() % 8) {
    case 0:
      text.erase(begin, length);
      break;
    case 1:
      text.insert(begin, word);
      break;
    case 2:
      text.replace(begin, length, word);
      break;
    case 3: {
      const auto [from, count] = token(other, random);
      text.replace(begin, length, other.substr(from, count));
      break;
    }
    case 4: {
      const std::string copied = text.substr(begin, length);
      const auto [to, unused] = token(text, random);
      text.insert(to, copied);
      break;
    }
    case 5: {  // the same many times
      std::string run;
      const std::string once = random() % 2 ? word : text.substr(begin, length);
      for (size_t i = size_t{1} << random() % 15; i > 0 && run.size() < 200000; --i) run += once;
      text.insert(begin, run);
      break;
    }
    case 6: {  // a line or a range twice
      const auto [from, count] = piece(text, random);
      text.insert(from, text.substr(from, count));
      break;
    }
    default:
      change_bytes(text, other, random);
      break;
  }
}

bool is_text(const std::string& name) {
  for (const char* ending : {".json", ".lua", ".zarray", ".zattrs", ".zgroup", ".zmetadata"}) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

}  // namespace

InputFiles damaged(const InputFiles& input, const std::vector<InputFiles>& others,
                   const std::vector<std::string>& words, Random& random) {
  InputFiles made = input;
  auto chosen = std::next(made.files.begin(), static_cast<std::ptrdiff_t>(below(random, made.files.size())));
  // Metadata have no checksums of their own.
  while (input.checked && is_text(chosen->first) && made.files.size() > 1)
    chosen = std::next(made.files.begin(), static_cast<std::ptrdiff_t>(below(random, made.files.size())));
  auto& [name, bytes] = *chosen;
  const std::string& other = one_of(one_of(others, random).files, random).second;
  const bool text = !words.empty() && is_text(name);
  const size_t changes = random() % 2 ? 1 : 1 + below(random, 12);
  for (size_t i = 0; i < changes; ++i) {
    if (bytes.empty() || other.empty()) break;
    if (input.checked) {
      overwrite(bytes, random);
    } else if (text) {
      change_text(bytes, other, words, random);
    } else {
      change_bytes(bytes, other, random);
    }
  }
  if (random() % 16 == 0) bytes.resize(below(random, bytes.size()));
  if (made.files.size() > 1 && !input.checked && random() % 64 == 0) made.files.erase(std::string(name));
  return made;
}

}  // namespace moonhalo::testing
