// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/pytorch/pt_write.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <bit>
#include <limits>

#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/pytorch/pt_dtypes.h"
#include "moonhalo/io/pytorch/utf8.h"
#include "moonhalo/io/pytorch/zip_writer.h"

namespace moonhalo::io {
namespace {

template <class Number>
void append(std::string& text, Number number) {
  text.append(reinterpret_cast<const char*>(&number), sizeof number);
}

}  // namespace

PtWriter::PtWriter(std::string who, std::string path)
    : who_(std::move(who)), path_(std::move(path)), pickle_("\x80\x02") {}

void PtWriter::none() { pickle_ += 'N'; }

void PtWriter::boolean(bool value) { pickle_ += value ? '\x88' : '\x89'; }

void PtWriter::integer(int64_t value) {
  if (value == static_cast<int32_t>(value)) {
    pickle_ += 'J';
    append(pickle_, static_cast<int32_t>(value));
  } else {
    pickle_ += "\x8a\x08";
    append(pickle_, value);
  }
}

void PtWriter::number(double value) {
  pickle_ += 'G';
  append(pickle_, __builtin_bswap64(std::bit_cast<uint64_t>(value)));
}

void PtWriter::global(std::string_view module, std::string_view name) {
  pickle_ += 'c';
  pickle_.append(module).append("\n").append(name).append("\n");
}

void PtWriter::unicode(std::string_view value) {
  TORCH_CHECK_VALUE(value.size() <= std::numeric_limits<uint32_t>::max(), who_, ": '", path_, "': a string of ",
                    value.size(), " bytes\n  have  a limit of 4 GiB\n  fix   save it as a tensor of uint8");
  pickle_ += 'X';
  append(pickle_, static_cast<uint32_t>(value.size()));
  pickle_ += value;
}

void PtWriter::text(std::string_view value) {
  if (is_utf8(value)) return unicode(value);
  global("_codecs", "encode");
  pickle_ += '(';
  unicode(latin1_to_utf8(value));
  unicode("latin1");
  pickle_ += "tR";
}

void PtWriter::begin_list() { pickle_ += "]("; }

void PtWriter::end_list() { pickle_ += 'e'; }

void PtWriter::begin_dict() {
  global("collections", "OrderedDict");
  pickle_ += ")R(";
}

void PtWriter::end_dict() { pickle_ += 'u'; }

void PtWriter::sizes(at::IntArrayRef values) {
  pickle_ += '(';
  for (const int64_t value : values) integer(value);
  pickle_ += 't';
}

void PtWriter::tensor(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(!is_shard_tensor(tensor), who_, ": '", path_,
                    "': a ShardTensor, of which this rank has a block\n  have  shape ", tensor.sizes(),
                    "\n  fix   call full_tensor() on all ranks and save on one, or save a checkpoint");
  check_computed(tensor, who_ + std::string(": '") + path_ + "': a tensor");
  const PtStorageType* type = storage_type_of(tensor.scalar_type());
  TORCH_CHECK_VALUE(type != nullptr, who_, ": '", path_, "': a tensor of ", c10::toString(tensor.scalar_type()),
                    "\n  have  a dtype that torch.save does not store\n  fix   convert it first");
  const auto [known, is_new] = keys_.try_emplace(
      {tensor.const_data_ptr(), tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()}, storages_.size());
  if (is_new || tensor.is_conj() || tensor.is_neg()) {
    known->second = storages_.size();
    given_.push_back(tensor);
    storages_.push_back(materialize_lazy_bits(tensor.detach()).to(at::kCPU).contiguous());
  }
  const at::Tensor& stored = storages_[known->second];
  const bool typed = type->storage != nullptr;
  global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  pickle_ += "((";
  unicode("storage");
  typed ? global("torch", type->storage) : global("torch.storage", "UntypedStorage");
  unicode(std::to_string(known->second));
  unicode("cpu");
  integer(typed ? stored.numel() : static_cast<int64_t>(stored.nbytes()));
  pickle_ += "tQ";
  integer(0);
  sizes(stored.sizes());
  sizes(stored.strides());
  boolean(false);
  global("collections", "OrderedDict");
  pickle_ += ")R";
  if (!typed) global("torch", type->dtype);
  pickle_ += "tR";
}

void PtWriter::finish() {
  pickle_ += '.';
  ZipWriter archive(who_, path_);
  archive.add("archive/data.pkl", pickle_);
  archive.add("archive/byteorder", std::string_view("little"));
  for (size_t i = 0; i < storages_.size(); ++i) {
    archive.add("archive/data/" + std::to_string(i), storages_[i].const_data_ptr(), storages_[i].nbytes());
  }
  archive.add("archive/version", std::string_view("3\n"));
  archive.finish();
}

void save_pt(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  PtWriter writer("save_pt", path);
  writer.begin_dict();
  for (const auto& [name, tensor] : tensors) {
    writer.text(name);
    writer.tensor(tensor);
  }
  writer.end_dict();
  writer.finish();
}

}  // namespace moonhalo::io
