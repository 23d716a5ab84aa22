// SPDX-License-Identifier: Apache-2.0
// The structure of PyTorch's files; pt_read.cpp reads their tensors.
#include "moonhalo/io/pytorch/pt_file.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/io/pytorch/pt_dtypes.h"
#include "moonhalo/io/pytorch/pt_names.h"

namespace moonhalo::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPickle = "data.pkl";
constexpr size_t kMostDims = 64;
constexpr int64_t kLongestNote = 64 << 20;
/// A tuple of protocol 2 or more that holds the number with which files of before PyTorch 1.6 begin.
constexpr std::string_view kOldMagic = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

/// The remedy for a file of another format, by its first bytes.
std::string remedy_for(const FileRange& range) {
  const std::string head = range.read(0, std::min<int64_t>(range.bytes(), 16));
  if (head.starts_with("\x89HDF") || head.starts_with("CDF")) return "open it as a file of fields";
  if (head.starts_with("\x93NUMPY")) return "read it as a file of numpy.save";
  if (head.size() > 8 && head[8] == '{') return "load it as a safetensors file";
  return "give a file that torch.save wrote";
}

std::vector<int64_t> integers(const Pickle& pickle, const PickleValue& tuple, bool& good) {
  std::vector<int64_t> numbers;
  for (const PickleValue& value : pickle.node(tuple).items) {
    good = good && value.kind == PickleKind::kInt && value.integer >= 0;
    numbers.push_back(value.integer);
  }
  return numbers;
}

/// The elements from the first one of a tensor to behind its last one; none where they are more than can be.
std::optional<int64_t> extent_of(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  int64_t last = 0, count = 1;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    int64_t step = 0;
    if (__builtin_mul_overflow(std::max<int64_t>(shape[dim], 1) - 1, strides[dim], &step) ||
        __builtin_add_overflow(last, step, &last) ||
        __builtin_mul_overflow(count, std::max<int64_t>(shape[dim], 1), &count))
      return std::nullopt;
  }
  return last + 1;
}

}  // namespace

std::shared_ptr<PtFile> PtFile::open(const std::string& path) {
  const std::string what = "load: file \"" + path + "\"";
  std::error_code error;
  TORCH_CHECK_VALUE(fs::exists(path, error), what, " does not exist\n  have  the working folder ",
                    fs::current_path(error).string(), "\n  fix   check the path");
  TORCH_CHECK_VALUE(fs::is_regular_file(path, error), what, " is a folder or a device\n  have  no file\n  fix   ",
                    fs::is_directory(path, error) ? "load a checkpoint, which is a folder, as a checkpoint"
                                                  : "give a file that torch.save wrote");
  return std::shared_ptr<PtFile>(new PtFile(what, path));
}

PtFile::PtFile(std::string what, const std::string& path)
    : what_(std::move(what)), file_(PositionedFile::open_to_read("load", path)) {
  range_ = {what_, &file_, 0, static_cast<int64_t>(fs::file_size(path))};
  Archive archive = unpack();
  const FileRange& inner = archive.range;
  if (!is_zip(inner)) {
    const std::string head = inner.read(0, std::min<int64_t>(inner.bytes(), 32));
    TORCH_CHECK_VALUE(
        head.find(kOldMagic) == std::string::npos, what_,
        " is in the format of PyTorch before 1.6\n  have  pickles without a zip archive\n  fix   in Python: "
        "torch.save(torch.load(path), path, _use_new_zipfile_serialization=True)");
    TORCH_CHECK_VALUE(false, what_, " is not a file of torch.save\n  have  ", inner.bytes(),
                      " bytes without a zip archive\n  fix   ", remedy_for(inner));
  }
  read_archive(std::move(archive));
  parse();
  check_tensors();
}

void PtFile::check(bool good, const std::string& damage) const { range_.check(good, damage); }

/// The archive that holds the pickle: the file itself, or model.pt in a .mdlus, which is a zip or a tar archive.
PtFile::Archive PtFile::unpack() {
  const bool tar = is_tar(range_);
  if (!tar && !is_zip(range_)) return {range_, {}};
  std::vector<ArchiveEntry> entries = tar ? read_tar(range_) : read_zip(range_);
  const auto entry = [&entries](std::string_view name) -> const ArchiveEntry* {
    const auto found =
        std::find_if(entries.rbegin(), entries.rend(), [&](const auto& one) { return one.name == name; });
    return found == entries.rend() ? nullptr : &*found;  // of two in a tar archive the last one counts
  };
  const ArchiveEntry* model = entry("model.pt");
  if (model == nullptr || entry("args.json") == nullptr) {
    TORCH_CHECK_VALUE(!tar, what_, " is a tar archive, but not a .mdlus\n  have  ", entries.size(),
                      " entries, none of them model.pt beside args.json\n  fix   unpack it, and load the file in it");
    return {range_, std::move(entries)};
  }
  for (const char* name : {"args.json", "metadata.json"}) {
    const ArchiveEntry* note = entry(name);
    if (note == nullptr) continue;
    check(note->stored && note->bytes <= kLongestNote, std::string(name) + ": compressed, or too long");
    notes_[name] = range_.read(note->offset, note->bytes);
  }
  check(model->stored, "model.pt: it is compressed");
  format_ = tar ? "PhysicsNeMo (tar), " : "PhysicsNeMo, ";
  const FileRange inner{what_, &file_, model->offset, model->offset + model->bytes};
  return {inner, is_zip(inner) ? read_zip(inner) : std::vector<ArchiveEntry>()};
}

const ArchiveEntry* PtFile::find(const std::string& name) const {
  const auto found = entries_.find(root_ + name);
  return found == entries_.end() ? nullptr : &found->second;
}

void PtFile::read_archive(Archive archive) {
  bool exported = false;
  std::optional<std::string> root;
  for (ArchiveEntry& entry : archive.entries) {
    const std::string name = entry.name;
    if (name == kPickle || name.ends_with(std::string("/") + kPickle)) {
      if (!root || name.size() < root->size() + std::string_view(kPickle).size())
        root = name.substr(0, name.size() - std::string_view(kPickle).size());
    }
    exported = exported || name.ends_with("archive_format");
    entries_[name] = std::move(entry);
  }
  TORCH_CHECK_VALUE(root, what_, exported ? " is a program of torch.export" : " is a zip archive without a pickle",
                    "\n  have  ", entries_.size(), " entries, none of them data.pkl\n  fix   ",
                    exported ? "load it as a program of torch.export; moonhalo inspect lists this file"
                             : "give a file that torch.save wrote; moonhalo inspect lists this file");
  root_ = *root;
  TORCH_CHECK_VALUE(find(kPickle)->stored, what_, ": its pickle is compressed\n  have  ", find(kPickle)->name,
                    "\n  fix   save it with torch.save, or unpack it and zip it with zip -0");
  if (const ArchiveEntry* order = find("byteorder")) {
    check(order->bytes <= 16, "byteorder: " + std::to_string(order->bytes) + " bytes");
    const std::string text = range_.read(order->offset, order->bytes);
    TORCH_CHECK_VALUE(text == "little", what_, ": its numbers are in the byte order of another machine\n  have  '",
                      text, "'\n  fix   save it on a little-endian machine");
  }
}

void PtFile::parse() {
  const ArchiveEntry& entry = *find(kPickle);
  pickle_ = std::make_unique<Pickle>(what_, range_.read(entry.offset, entry.bytes));
  const bool script = find("constants.pkl") != nullptr;
  format_ +=
      std::string(script ? "TorchScript" : "PyTorch") + ", zip, pickle protocol " + std::to_string(pickle_->protocol());
}

PtTensor PtFile::storage_of(const PickleNode& storage, const std::string& who) const {
  const std::string_view type = pickle_->text(storage.items[0]);
  const std::optional<at::ScalarType> dtype = dtype_of_storage(type);
  TORCH_CHECK_VALUE(dtype, what_, ": ", who, " is stored as ", type,
                    "\n  have  a type that LibTorch lacks or that is old\n",
                    "  fix   convert it in Python, and save it again");
  PtTensor tensor{.dtype = *dtype, .shape = {storage.items[3].integer}, .strides = {1}};
  const int64_t count = tensor.shape[0];
  check(count >= 0 &&
            !__builtin_mul_overflow(count, static_cast<int64_t>(c10::elementSize(*dtype)), &tensor.storage_bytes),
        who + ": a storage of " + std::to_string(count) + " elements");
  if (tensor.storage_bytes == 0) return tensor;
  const std::string name = "data/" + std::string(pickle_->text(storage.items[1]));
  const ArchiveEntry* entry = find(name);
  check(entry != nullptr, who + ": its data are missing, entry '" + root_ + name + "'");
  TORCH_CHECK_VALUE(entry->stored, what_, ": ", who, " is compressed\n  have  ", entry->name,
                    "\n  fix   save it with torch.save, or unpack it and zip it with zip -0");
  check(tensor.storage_bytes <= entry->bytes, who + ": its storage has " + std::to_string(tensor.storage_bytes) +
                                                  " bytes, its entry '" + entry->name + "' " +
                                                  std::to_string(entry->bytes));
  tensor.storage_begin = entry->offset;
  return tensor;
}

PtTensor PtFile::make_tensor(const PickleNode& node) const {
  const std::string who = "the tensor at byte " + std::to_string(node.at) + " of its pickle";
  PtTensor tensor = storage_of(pickle_->node(node.items[0]), who);
  if (node.items[5].kind == PickleKind::kGlobal) {
    const std::string_view name = pickle_->text(node.items[5]);
    const std::optional<at::ScalarType> dtype = dtype_of_name(name);
    TORCH_CHECK_VALUE(dtype, what_, ": ", who, " is of ", name, "\n  have  a dtype that is not read",
                      "\n  fix   convert it in Python, and save it again");
    tensor.dtype = *dtype;
  }
  for (const auto& [name, flag] : {std::pair("conj", &tensor.conj), {"neg", &tensor.neg}}) {
    const PickleValue* found = pickle_->find(node.items[4], name);
    *flag = found != nullptr && found->kind == PickleKind::kBool && found->integer != 0;
  }
  bool good = !tensor.conj || c10::isComplexType(tensor.dtype);
  tensor.shape = integers(*pickle_, node.items[2], good);
  tensor.strides = integers(*pickle_, node.items[3], good);
  tensor.offset = node.items[1].integer;
  check(good && tensor.offset >= 0 && tensor.shape.size() == tensor.strides.size() && tensor.shape.size() <= kMostDims,
        who + ": its sizes, strides or offset cannot be those of a tensor");
  const std::optional<int64_t> extent = extent_of(tensor.shape, tensor.strides);
  const bool empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
  const int64_t elements = tensor.storage_bytes / static_cast<int64_t>(c10::elementSize(tensor.dtype));
  check(extent && (empty || (tensor.offset <= elements && *extent <= elements - tensor.offset)),
        who + ": shape " + shape_string(tensor.shape) + ", strides " + shape_string(tensor.strides) + " and offset " +
            std::to_string(tensor.offset) + " leave its storage of " + std::to_string(elements) + " elements");
  return tensor;
}

void PtFile::check_tensors() {
  for (int64_t i = 0; i < pickle_->count_nodes(); ++i) {
    PickleValue value;
    value.node = i;
    const PickleNode& node = pickle_->node(value);
    if (node.kind == PickleKind::kTensor) tensors_[i] = make_tensor(node);
    if (node.kind == PickleKind::kStorage)
      tensors_[i] = storage_of(node, "the storage at byte " + std::to_string(node.at) + " of its pickle");
  }
}

const PtTensor& PtFile::tensor(const PickleValue& value) const { return tensors_.at(value.node); }

std::vector<std::pair<std::string, PtTensor>> PtFile::tensors() const {
  std::vector<std::pair<std::string, PtTensor>> found;
  for (const PtName& one : pt_names(what_, *pickle_)) {
    if (one.value.kind == PickleKind::kTensor) found.emplace_back(one.name, tensor(one.value));
  }
  return found;
}

std::string PtFile::format() const { return format_; }

std::vector<ArchiveEntry> list_zip_file(const std::string& path) {
  const PositionedFile file = PositionedFile::open_to_read("inspect", path);
  return read_zip({"inspect: file \"" + path + "\"", &file, 0, static_cast<int64_t>(fs::file_size(path))});
}

}  // namespace moonhalo::io
