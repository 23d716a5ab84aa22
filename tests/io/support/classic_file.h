// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moonhalo::testing {

/// The bytes of NetCDF-3 files, put together by hand: CDF-1, CDF-2 or CDF-5.
class ClassicFile {
 public:
  struct Dim {
    std::string name;
    uint64_t size;  // 0: records
  };
  struct Attribute {
    std::string name;
    uint32_t type;
    uint64_t count;
    std::string bytes;  // big-endian
  };
  struct Variable {
    std::string name;
    std::vector<uint64_t> dims;
    uint32_t type;
    std::string bytes;  // big-endian, all records
    std::vector<Attribute> attributes = {};
  };

  explicit ClassicFile(int version) : version_(version) {}
  std::vector<Dim> dims;
  std::vector<Attribute> attributes;
  std::vector<Variable> variables;
  uint64_t records = 0;

  std::string bytes() const {
    const uint64_t size = head(0).size();
    std::string file = head(size);
    for (const Variable& variable : variables) {
      if (!grows(variable)) file += filled(variable.bytes, true);
    }
    for (uint64_t row = 0; row < records; ++row) {
      for (const Variable& variable : variables) {
        if (!grows(variable)) continue;
        const uint64_t one = variable.bytes.size() / records;
        file += filled(variable.bytes.substr(row * one, one), record_variables() > 1);
      }
    }
    return file;
  }

  static std::string number(uint64_t value, size_t bytes) {
    std::string text;
    for (size_t i = bytes; i-- > 0;) text += static_cast<char>(value >> (8 * i));
    return text;
  }

 private:
  static std::string filled(std::string bytes, bool fill) {
    while (fill && bytes.size() % 4 != 0) bytes += '\0';
    return bytes;
  }
  std::string count(uint64_t value) const { return number(value, version_ == 5 ? 8 : 4); }
  std::string name(const std::string& text) const { return count(text.size()) + filled(text, true); }
  bool grows(const Variable& variable) const { return !variable.dims.empty() && dims[variable.dims[0]].size == 0; }
  uint64_t record_variables() const {
    uint64_t found = 0;
    for (const Variable& variable : variables) found += grows(variable);
    return found;
  }
  std::string list(uint64_t tag, uint64_t length) const { return number(length ? tag : 0, 4) + count(length); }
  std::string all(const std::vector<Attribute>& list_of) const {
    std::string text = list(0xc, list_of.size());
    for (const Attribute& one : list_of)
      text += name(one.name) + number(one.type, 4) + count(one.count) + filled(one.bytes, true);
    return text;
  }

  /// `begin`: where the first variable is.
  std::string head(uint64_t begin) const {
    std::string text = "CDF" + number(static_cast<uint64_t>(version_), 1) + count(records) + list(0xa, dims.size());
    for (const Dim& dim : dims) text += name(dim.name) + count(dim.size);
    text += all(attributes) + list(0xb, variables.size());
    uint64_t row_begin = begin;
    for (const Variable& variable : variables) {
      if (!grows(variable)) row_begin += filled(variable.bytes, true).size();
    }
    for (const Variable& variable : variables) {
      uint64_t& at = grows(variable) ? row_begin : begin;
      uint64_t size = grows(variable) && records > 0 ? variable.bytes.size() / records : variable.bytes.size();
      size += (4 - size % 4) % 4;
      text += name(variable.name) + count(variable.dims.size());
      for (const uint64_t dim : variable.dims) text += count(dim);
      text += all(variable.attributes) + number(variable.type, 4) + count(size) + number(at, version_ == 1 ? 4 : 8);
      at += size;
    }
    return text;
  }

  const int version_;
};

/// A file of every type that the version has, fixed and by records, whose elements are 0, 1, 2, ... modulo 100.
inline ClassicFile classic_example(int version) {
  ClassicFile file(version);
  file.dims = {{"time", 0}, {"y", 3}, {"x", 5}};
  file.records = 4;
  file.attributes = {{"title", 2, 3, "abc"}};
  const auto floating = [](double value, size_t size) {
    union {
      float narrow;
      uint32_t narrow_bits;
      double wide;
      uint64_t wide_bits;
    } both{};
    if (size == 8) both.wide = value;
    if (size == 4) both.narrow = static_cast<float>(value);
    return ClassicFile::number(size == 8 ? both.wide_bits : both.narrow_bits, size);
  };
  const size_t sizes[] = {0, 1, 1, 2, 4, 4, 8, 1, 2, 4, 8, 8};
  for (uint32_t type = 1; type <= (version == 5 ? 11u : 6u); ++type) {
    const auto numbers = [&](int count) {
      std::string bytes;
      for (int i = 0; i < count; ++i) {
        const bool real = type == 5 || type == 6;
        bytes += type == 2 ? std::string(1, static_cast<char>('a' + i % 26))
                 : real    ? floating(i % 100, sizes[type])
                           : ClassicFile::number(static_cast<uint64_t>(i % 100), sizes[type]);
      }
      return bytes;
    };
    const std::string id = std::to_string(type);
    file.variables.push_back({"fixed" + id, {1, 2}, type, numbers(15)});
    file.variables.push_back({"rows" + id, {0, 2}, type, numbers(20)});
  }
  file.variables[4].attributes = {
      {"units", 2, 1, "K"}, {"scale_factor", 6, 1, floating(0.5, 8)}, {"_FillValue", 3, 1, ClassicFile::number(3, 2)}};
  file.variables.push_back({"one", {}, 4, ClassicFile::number(7, 4)});
  file.variables.push_back({"time", {0}, 6, floating(0, 8) + floating(1, 8) + floating(2, 8) + floating(3, 8)});
  return file;
}

}  // namespace moonhalo::testing
