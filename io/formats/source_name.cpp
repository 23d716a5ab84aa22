// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/source_name.h"

#include <charconv>

namespace moonhalo::io::h5 {

SourceName::SourceName(const std::string& stored) {
  pieces_.emplace_back();
  for (size_t i = 0; i < stored.size(); ++i) {
    const char next = stored[i] == '%' && i + 1 < stored.size() ? stored[i + 1] : '\0';
    if (next == 'b') {
      pieces_.emplace_back();
    } else {
      pieces_.back() += stored[i];
    }
    if (next == 'b' || next == '%') ++i;
  }
}

std::string SourceName::of(uint64_t block) const {
  std::string name = pieces_.front();
  for (size_t i = 1; i < pieces_.size(); ++i) name += std::to_string(block) + pieces_[i];
  return name;
}

std::optional<std::string> SourceName::folder() const {
  for (size_t i = 1; i < pieces_.size(); ++i) {
    if (pieces_[i].find('/') != std::string::npos) return std::nullopt;
  }
  const size_t slash = pieces_.front().rfind('/');
  if (slash == std::string::npos) return "";
  return slash == 0 ? "/" : pieces_.front().substr(0, slash);
}

std::optional<uint64_t> SourceName::block_of(const std::string& name) const {
  const std::string& first = pieces_.front();
  const std::string before = first.substr(first.rfind('/') + 1);  // all of it where there is no "/"
  if (!is_numbered() || !name.starts_with(before)) return std::nullopt;
  uint64_t block = 0;
  const char* const begin = name.data() + before.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), block);
  const std::string whole = of(block);
  if (error != std::errc() || whole.substr(first.size() - before.size()) != name) return std::nullopt;
  return block;
}

}  // namespace moonhalo::io::h5
