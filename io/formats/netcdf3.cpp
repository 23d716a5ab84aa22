// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/netcdf3.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/io/base/h5_types.h"
#include "moonhalo/io/base/read_into.h"

namespace moonhalo::io {
namespace {

constexpr size_t kMostDims = 32;  // as in HDF5
constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max();
// Sizes of four bytes have a sign in the format, but NetCDF's library writes larger ones into files with 64-bit
// offsets, whose variables then are as long.
constexpr uint64_t kLargestInt = std::numeric_limits<int32_t>::max(), kLargestOfNetcdf = 0xfffffffc;

struct Type {
  size_t bytes;
  std::optional<at::ScalarType> dtype;
};

/// By the number in the file, from 1 on.
const std::array<Type, 11> kTypes = {{{1, at::kChar},
                                      {1, std::nullopt},
                                      {2, at::kShort},
                                      {4, at::kInt},
                                      {4, at::kFloat},
                                      {8, at::kDouble},
                                      {1, at::kByte},
                                      {2, at::kUInt16},
                                      {4, at::kUInt32},
                                      {8, at::kLong},
                                      {8, at::kUInt64}}};
constexpr uint32_t kText = 2, kClassicTypes = 6;

uint64_t padded(uint64_t bytes) { return bytes + (4 - bytes % 4) % 4; }

/// The bytes of a head, one after the other.
class HeadReader {
 public:
  HeadReader(const std::string& path, int file, uint64_t size) : path_(path), file_(file), size_(size) {}

  /// ValueError that says what is wrong with the head.
  void check(bool good, const std::string& damage) const {
    TORCH_CHECK_VALUE(good, "open: file \"", path_, "\": damaged NetCDF-3 head\n  have  ", damage, ", at byte ", at_,
                      " of ", size_, "\n  fix   copy or download it again");
  }
  uint64_t number(size_t bytes) {
    uint64_t value = 0;
    const char* data = take(bytes);
    for (size_t i = 0; i < bytes; ++i) value = value << 8 | static_cast<unsigned char>(data[i]);
    return value;
  }
  /// Followed by what fills it up to a multiple of four.
  std::string bytes(uint64_t count) {
    check(count <= size_ - at_, "a string of " + std::to_string(count) + " bytes, more than there are");
    std::string text;
    while (text.size() < count) {
      const size_t part = std::min<uint64_t>(count - text.size(), kBuffer);
      text.append(take(part), part);
    }
    at_ += std::min(padded(count) - count, size_ - at_);
    return text;
  }
  uint64_t at() const { return at_; }
  uint64_t size() const { return size_; }

 private:
  static constexpr size_t kBuffer = 8192;

  const char* take(size_t bytes) {
    check(bytes <= size_ - at_, "it ends too early");
    if (at_ < begin_ || at_ + bytes > begin_ + buffered_) fill();
    const char* data = buffer_.data() + (at_ - begin_);
    at_ += bytes;
    return data;
  }
  void fill() {
    begin_ = at_;
    buffered_ = 0;
    const size_t required = std::min<uint64_t>(buffer_.size(), size_ - begin_);
    const int64_t got = read_into(file_, {{buffer_.data(), static_cast<int64_t>(required)}}, begin_);
    TORCH_CHECK(got >= 0, "open: file \"", path_, "\": cannot read it\n  have  ", std::strerror(errno),
                "\n  fix   check the disk, or copy the file again");
    check(static_cast<size_t>(got) == required, "it ends too early");
    buffered_ = required;
  }

  const std::string& path_;
  const int file_;
  const uint64_t size_;
  uint64_t at_ = 0, begin_ = 0;
  size_t buffered_ = 0;
  std::array<char, 2 * kBuffer> buffer_;
};

struct Dim {
  std::string name;
  uint64_t size = 0;  // 0: the record dimension
};

struct Variable {
  std::string name;
  std::vector<uint64_t> dims;
  Catalog::AttributeMap attrs;
  uint32_t type = 0;
  uint64_t begin = 0;
  uint64_t row = 0;  // bytes of one record, or of all
  bool record = false;
};

class Head {
 public:
  Head(const std::string& path, int file, uint64_t size) : in_(path, file, size) {}

  std::unique_ptr<Catalog> read() {
    in_.number(3);
    version_ = in_.number(1);
    wide_ = version_ == 5 ? 8 : 4;
    const uint64_t records = in_.number(wide_);
    read_dims();
    auto catalog = std::make_unique<Catalog>();
    catalog->format = version_ == 1   ? "NetCDF-3 (classic)"
                      : version_ == 2 ? "NetCDF-3 (64-bit offsets)"
                                      : "NetCDF-3 (64-bit data)";
    catalog->has_default_fills = true;
    catalog->groups[""] = read_attributes();
    const uint64_t count = list(0xb, "variables");
    for (uint64_t i = 0; i < count; ++i) variables_.push_back(read_variable());
    find_records(records);
    for (Variable& variable : variables_) {
      in_.check(!catalog->find(variable.name), "a second variable \"" + variable.name + "\"");
      catalog->arrays[variable.name] = array_of(variable);
    }
    return catalog;
  }

 private:
  uint64_t list(uint64_t tag, const char* of) {
    const uint64_t found = in_.number(4), count = in_.number(wide_);
    in_.check(found == tag || (found == 0 && count == 0), std::string("no list of ") + of);
    return count;
  }

  std::string name() {
    std::string text = in_.bytes(in_.number(wide_));
    in_.check(!text.empty() && text.find('\0') == std::string::npos && text.find('/') == std::string::npos,
              "a name that is none");
    return text;
  }

  uint32_t type() {
    const uint64_t number = in_.number(4);
    in_.check(number >= 1 && number <= (version_ == 5 ? kTypes.size() : kClassicTypes),
              "an unknown type " + std::to_string(number));
    return static_cast<uint32_t>(number);
  }

  int64_t signed_size(uint64_t size) const {
    return wide_ == 8 ? static_cast<int64_t>(size) : static_cast<int32_t>(size);
  }

  void read_dims() {
    const uint64_t count = list(0xa, "dimensions");
    for (uint64_t i = 0; i < count; ++i) {
      Dim dim{name(), in_.number(wide_)};
      in_.check(dim.size <= (version_ == 5   ? kLargest
                             : version_ == 2 ? kLargestOfNetcdf
                                             : kLargestInt),
                "dimension \"" + dim.name + "\" of negative size " + std::to_string(signed_size(dim.size)));
      const bool records = std::any_of(dims_.begin(), dims_.end(), [](const Dim& other) { return other.size == 0; });
      in_.check(dim.size > 0 || !records, "a second record dimension");
      dims_.push_back(std::move(dim));
    }
  }

  Catalog::AttributeMap read_attributes() {
    Catalog::AttributeMap attributes;
    const uint64_t count = list(0xc, "attributes");
    for (uint64_t i = 0; i < count; ++i) {
      const std::string key = name();
      const uint32_t kind = type();
      const uint64_t values = in_.number(wide_);
      in_.check(values <= in_.size(), "an attribute of " + std::to_string(values) + " values");
      attributes[key] = value_of(kind, in_.bytes(values * kTypes[kind - 1].bytes));
    }
    return attributes;
  }

  static Catalog::Attribute value_of(uint32_t kind, std::string bytes) {
    if (kind == kText) {
      bytes.resize(bytes.find_last_not_of('\0') + 1);
      return {std::move(bytes)};
    }
    const Type& type = kTypes[kind - 1];
    const size_t count = bytes.size() / type.bytes;
    if (count == 0) return {std::vector<std::string>{}};
    swap_bytes(bytes.data(), type.bytes, count);
    switch (*type.dtype) {
      case at::kFloat:
        return {numbers<float, double>(bytes), 4};
      case at::kDouble:
        return {numbers<double, double>(bytes), 8};
      case at::kChar:
        return {numbers<int8_t, int64_t>(bytes)};
      case at::kByte:
        return {numbers<uint8_t, int64_t>(bytes)};
      case at::kShort:
        return {numbers<int16_t, int64_t>(bytes)};
      case at::kUInt16:
        return {numbers<uint16_t, int64_t>(bytes)};
      case at::kInt:
        return {numbers<int32_t, int64_t>(bytes)};
      case at::kUInt32:
        return {numbers<uint32_t, int64_t>(bytes)};
      case at::kLong:
        return {numbers<int64_t, int64_t>(bytes)};
      default:
        break;
    }
    for (size_t i = 0; i < count; ++i) {  // past the signed range: as attributes of HDF5 files
      if (static_cast<unsigned char>(bytes[8 * i + 7]) & 0x80) return {numbers<uint64_t, double>(bytes)};
    }
    return {numbers<uint64_t, int64_t>(bytes)};
  }

  template <typename Stored, typename Value>
  static AttributeValue numbers(const std::string& bytes) {
    std::vector<Value> values;
    for (size_t at = 0; at + sizeof(Stored) <= bytes.size(); at += sizeof(Stored)) {
      Stored stored;
      std::memcpy(&stored, bytes.data() + at, sizeof(Stored));
      values.push_back(static_cast<Value>(stored));
    }
    if (values.size() == 1) return values.front();
    return values;
  }

  Variable read_variable() {
    Variable variable;
    variable.name = name();
    const uint64_t count = in_.number(wide_);
    in_.check(count <= kMostDims, "variable \"" + variable.name + "\" with " + std::to_string(count) + " dimensions");
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t dim = in_.number(wide_);
      in_.check(dim < dims_.size(), "variable \"" + variable.name + "\" with a dimension that there is not");
      in_.check(i == 0 || dims_[dim].size > 0,
                "variable \"" + variable.name + "\" whose record dimension is not first");
      variable.dims.push_back(dim);
    }
    variable.record = count > 0 && dims_[variable.dims.front()].size == 0;
    variable.attrs = read_attributes();
    variable.type = type();
    in_.number(wide_);  // its size, which does not always fit there: the shape says it
    variable.begin = in_.number(version_ == 1 ? 4 : 8);
    variable.row = kTypes[variable.type - 1].bytes;
    bool fits = variable.begin <= kLargest;
    for (size_t i = variable.record ? 1 : 0; i < variable.dims.size(); ++i) {
      fits = fits && !__builtin_mul_overflow(variable.row, dims_[variable.dims[i]].size, &variable.row);
    }
    fits = fits && variable.row <= kLargest - variable.begin;
    in_.check(fits, "variable \"" + variable.name + "\" of more bytes than a file can have");
    for (const uint64_t dim : variable.dims) {
      in_.check(
          version_ != 2 || dims_[dim].size <= kLargestInt || variable.begin + variable.row <= in_.size(),
          "dimension \"" + dims_[dim].name + "\" of negative size " + std::to_string(signed_size(dims_[dim].size)));
    }
    return variable;
  }

  /// Bytes from record to record, and how many there are.
  void find_records(uint64_t count) {
    uint64_t variables = 0, row = 0, begin = kLargest, end = 0;
    for (const Variable& variable : variables_) {
      if (!variable.record) continue;
      ++variables;
      row = variable.row;
      begin = std::min(begin, variable.begin);
      end = std::max(end, variable.begin + variable.row);
      in_.check(!__builtin_add_overflow(record_, padded(variable.row), &record_) && record_ <= kLargest,
                "records of more bytes than a file can have");
    }
    if (variables == 1) record_ = row;  // without what fills it up to a multiple of four
    const bool streaming = count == (wide_ == 8 ? ~uint64_t{0} : uint64_t{0xffffffff});
    if (streaming) count = record_ > 0 && begin < in_.size() ? (in_.size() - begin) / record_ : 0;
    uint64_t bytes = 0;
    in_.check(count <= kLargestInt || wide_ == 8 || record_ == 0 || count <= in_.size() / record_,
              std::to_string(signed_size(count)) + " records");
    in_.check(wide_ == 4 || count <= kLargest, std::to_string(signed_size(count)) + " records");
    in_.check(!__builtin_mul_overflow(count, record_, &bytes) && count <= kLargest && bytes <= kLargest - end,
              std::to_string(count) + " records of more bytes than a file can have");
    records_ = count;
  }

  Catalog::Array array_of(Variable& variable) const {
    Catalog::Array array;
    const Type& type = kTypes[variable.type - 1];
    auto info = std::make_shared<DatasetInfo>();
    info->name = variable.name;
    for (const uint64_t dim : variable.dims) {
      info->shape.push_back(static_cast<int64_t>(dims_[dim].size > 0 ? dims_[dim].size : records_));
      array.dims.push_back(dims_[dim].name);
    }
    info->dtype = type.dtype;
    info->type_name = type.dtype ? h5::dtype_name(*type.dtype) : "string";
    info->element_size = type.bytes;
    info->native = type.bytes == 1;
    info->swapped = !info->native;
    info->offset = variable.begin;
    if (variable.record) {
      info->strides.resize(variable.dims.size());
      auto stride = static_cast<int64_t>(type.bytes);
      for (size_t dim = variable.dims.size(); dim-- > 1; stride *= info->shape[dim]) info->strides[dim] = stride;
      info->strides[0] = static_cast<int64_t>(record_);
    }
    array.info = std::move(info);
    array.attrs = std::move(variable.attrs);
    return array;
  }

  HeadReader in_;
  uint64_t version_ = 0;
  size_t wide_ = 4;  // bytes of a count
  std::vector<Dim> dims_;
  std::vector<Variable> variables_;
  uint64_t record_ = 0, records_ = 0;
};

}  // namespace

bool is_netcdf3(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return false;
  std::array<char, 4> head{};
  std::ifstream stream(path, std::ios::binary);
  stream.read(head.data(), head.size());
  return stream.gcount() == 4 && std::memcmp(head.data(), "CDF", 3) == 0 &&
         (head[3] == 1 || head[3] == 2 || head[3] == 5);
}

std::unique_ptr<Catalog> read_netcdf3(const std::string& path) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat found {};
  TORCH_CHECK(file.get() >= 0 && fstat(file.get(), &found) == 0, "open: file \"", path, "\": cannot open it\n  have  ",
              std::strerror(errno), "\n  fix   check the disk and its permissions");
  auto catalog = Head(path, file.get(), static_cast<uint64_t>(found.st_size)).read();
  catalog->file = std::move(file);
  return catalog;
}

}  // namespace moonhalo::io
