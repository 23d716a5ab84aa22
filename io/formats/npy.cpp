// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/npy.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <bit>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <limits>

#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/io/base/h5_types.h"
#include "moonhalo/io/base/new_file.h"
#include "moonhalo/io/base/numpy_dtypes.h"
#include "moonhalo/io/base/read_into.h"
#include "moonhalo/io/formats/zarr_types.h"

namespace moonhalo::io {
namespace {

static_assert(std::endian::native == std::endian::little, "numpy's \"<\" is the order of this machine");

constexpr const char* kMagic = "\x93NUMPY";
constexpr size_t kMagicBytes = 6, kAlignment = 64;
constexpr uint64_t kLongestHead = 1 << 20;

/// Reads the head of a file: a Python dict {'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }.
class HeadParser {
 public:
  HeadParser(const std::string& path, const std::string& text) : path_(path), text_(text) {}

  Json descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;

  void parse() {
    std::array<bool, 3> known{};
    take('{');
    while (!skip('}')) {
      const std::string key = string();
      take(':');
      const size_t which = key == "descr" ? 0 : key == "fortran_order" ? 1 : key == "shape" ? 2 : 3;
      check(which < 3 && !known[which], "the key '" + key.substr(0, 40) + "'");
      known[which] = true;
      if (which == 0) read_descr();
      if (which == 1) fortran_order = truth();
      if (which == 2) read_shape();
      if (!skip(',')) {
        take('}');
        break;
      }
    }
    check(known == std::array{true, true, true}, "not all of descr, fortran_order and shape");
    spaces();
    check(at_ == text_.size(), "text behind its dict");
  }

  void check(bool good, const std::string& damage) const {
    TORCH_CHECK_VALUE(good, "open: file \"", path_, "\": damaged .npy head\n  have  ", damage,
                      "\n  fix   copy it again, or save it again");
  }

 private:
  void spaces() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool skip(char required) {
    spaces();
    if (at_ >= text_.size() || text_[at_] != required) return false;
    ++at_;
    return true;
  }
  void take(char required) {
    check(skip(required), std::string("no '") + required + "' at character " + std::to_string(at_));
  }
  std::string string() {
    spaces();
    const char quote = at_ < text_.size() ? text_[at_] : ' ';
    check(quote == '\'' || quote == '"', "no text at character " + std::to_string(at_));
    const size_t end = text_.find(quote, at_ + 1);
    check(end != std::string::npos, "a string without an end");
    std::string found = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return found;
  }
  bool truth() {
    spaces();
    for (const auto& [word, value] : {std::pair("True", true), {"False", false}}) {
      if (text_.compare(at_, std::strlen(word), word) != 0) continue;
      at_ += std::strlen(word);
      return value;
    }
    check(false, "a fortran_order that is neither True nor False");
    return false;
  }
  /// A string, or a list, which describes a compound.
  void read_descr() {
    if (!skip('[')) {
      descr = string();
      return;
    }
    descr = Json::array();
    for (int depth = 1; depth > 0; ++at_) {
      check(at_ < text_.size(), "a list without an end");
      depth += (text_[at_] == '[') - (text_[at_] == ']');
    }
  }
  void read_shape() {
    take('(');
    while (!skip(')')) {
      spaces();
      int64_t extent = -1;
      const char* const begin = text_.data() + at_;
      const auto parsed = std::from_chars(begin, text_.data() + text_.size(), extent);
      check(parsed.ec == std::errc() && extent >= 0, "a shape that is none");
      at_ += static_cast<size_t>(parsed.ptr - begin);
      skip('L');  // as Python 2 wrote long numbers
      shape.push_back(extent);
      if (!skip(',')) {
        take(')');
        break;
      }
    }
  }

  const std::string& path_;
  const std::string& text_;
  size_t at_ = 0;
};

std::string bytes_at(const std::string& path, int file, uint64_t offset, uint64_t bytes) {
  std::string text(bytes, '\0');
  const int64_t got = read_into(file, {{text.data(), static_cast<int64_t>(bytes)}}, offset);
  TORCH_CHECK(got >= 0, "open: file \"", path, "\": cannot read it\n  have  ", std::strerror(errno),
              "\n  fix   check the disk, or copy the file again");
  TORCH_CHECK_VALUE(static_cast<uint64_t>(got) == bytes, "open: file \"", path,
                    "\" is cut short\n  have  it ends in its head, at byte ", offset + static_cast<uint64_t>(got),
                    "\n  fix   copy it again, or save it again");
  return text;
}

std::string refusal_of(const ZarrType& type) {
  if (type.dtype) return "";
  const char* const fix = type.name == "object" ? "save an array of numbers: numpy.save(path, x.astype(\"float64\"))"
                          : type.name == "compound" ? "save each of its columns as an array of its own"
                                                    : "save it as numbers";
  return "elements of type " + type.name + " are not read\n  have  a .npy file of " +
         (type.name == "object" ? "Python objects, which only pickle reads" : "no numbers") + "\n  fix   " + fix;
}

/// Shape and type must be in bounds; and the file must hold as much.
void check_size(const HeadParser& head, const std::string& path, const DatasetInfo& info, uint64_t file_bytes) {
  uint64_t bytes = std::max<size_t>(info.element_size, 1);
  bool fits = head.shape.size() <= 32;
  for (const int64_t extent : head.shape)
    fits = fits && !__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes);
  head.check(fits && bytes <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
             "a shape of more elements than a file can have");
  TORCH_CHECK_VALUE(!info.refusal.empty() || bytes <= file_bytes - *info.offset, "open: file \"", path,
                    "\" is cut short\n  have  ", file_bytes - *info.offset, " bytes behind the head, shape ",
                    shape_string(head.shape), " of ", info.type_name, " has ", bytes,
                    "\n  fix   copy it again, or save it again");
}

std::string descr_of(at::ScalarType dtype) {
  return (c10::elementSize(dtype) == 1 ? '|' : '<') + std::string(numpy_name(dtype));
}

}  // namespace

bool is_npy(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return false;
  std::array<char, kMagicBytes> head{};
  std::ifstream stream(path, std::ios::binary);
  stream.read(head.data(), head.size());
  return stream.gcount() == kMagicBytes && std::memcmp(head.data(), kMagic, kMagicBytes) == 0;
}

std::unique_ptr<Catalog> read_npy(const std::string& path) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat found {};
  TORCH_CHECK(file.get() >= 0 && fstat(file.get(), &found) == 0, "open: file \"", path, "\": cannot open it\n  have  ",
              std::strerror(errno), "\n  fix   check the disk and its permissions");
  const std::string version = bytes_at(path, file.get(), kMagicBytes, 2);
  const int major = static_cast<unsigned char>(version[0]), minor = static_cast<unsigned char>(version[1]);
  TORCH_CHECK_VALUE(major >= 1 && major <= 3 && minor == 0, "open: file \"", path,
                    "\": unknown version of .npy\n  have  ", major, ".", minor,
                    ", known are 1.0, 2.0 and 3.0\n  fix   save it again with numpy.save");
  const size_t count_bytes = major == 1 ? 2 : 4;
  const std::string count = bytes_at(path, file.get(), kMagicBytes + 2, count_bytes);
  uint64_t length = 0;
  std::memcpy(&length, count.data(), count_bytes);
  std::string none;
  HeadParser(path, none).check(length <= kLongestHead, "a head of " + std::to_string(length) + " bytes");
  const std::string text = bytes_at(path, file.get(), kMagicBytes + 2 + count_bytes, length);
  HeadParser head(path, text);
  head.parse();

  auto info = std::make_shared<DatasetInfo>();
  ZarrType type;
  try {
    type = zarr2_type(head.descr);
  } catch (const BrokenZarr&) {
    head.check(false, "descr " + head.descr.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80));
  }
  info->name = kNpyDataset;
  info->shape = head.shape;
  info->dtype = type.dtype;
  info->type_name = type.name;
  info->element_size = type.bytes;
  info->offset = kMagicBytes + 2 + count_bytes + length;
  info->reversed = head.fortran_order && head.shape.size() > 1;
  info->swapped = type.swapped;
  info->native = !type.swapped;
  info->refusal = refusal_of(type);
  check_size(head, path, *info, static_cast<uint64_t>(found.st_size));

  auto catalog = std::make_unique<Catalog>();
  catalog->format = "NumPy .npy " + std::to_string(major) + ".0";
  catalog->groups[""] = {};
  Catalog::Array array{info, std::vector<std::string>(head.shape.size())};
  add_time_attributes(array.attrs, type);
  catalog->arrays[kNpyDataset] = std::move(array);
  catalog->file = std::move(file);
  return catalog;
}

void write_npy(const std::string& path, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(!numpy_name(tensor.scalar_type()).empty(), "files.write_npy: file \"", path,
                   "\": numpy has no dtype ", h5::dtype_name(tensor.scalar_type()),
                   "\n  have  a tensor of it\n  fix   convert it to float32 first");
  const at::Tensor data = materialize_lazy_bits(tensor.detach()).to(at::kCPU).contiguous();
  std::string shape;
  for (const int64_t extent : data.sizes()) shape += std::to_string(extent) + (data.dim() == 1 ? "," : ", ");
  if (data.dim() > 1) shape.resize(shape.size() - 2);
  std::string head =
      "{'descr': '" + descr_of(data.scalar_type()) + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  constexpr size_t kBefore = kMagicBytes + 4;
  head.append(kAlignment - (kBefore + head.size() + 1) % kAlignment, ' ');
  head += '\n';
  const std::array<char, 4> version = {1, 0, static_cast<char>(head.size() & 0xff),
                                       static_cast<char>(head.size() >> 8)};
  NewFile file("files.write_npy", path);
  file.write(kMagic, kMagicBytes);
  file.write(version.data(), version.size());
  file.write(head.data(), head.size());
  file.write(data.const_data_ptr(), data.nbytes());
  file.finish();
}

}  // namespace moonhalo::io
