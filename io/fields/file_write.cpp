// SPDX-License-Identifier: Apache-2.0
// The part of domain_file.h that writes.
#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/fields/write_together.h"
#include "moonhalo/io/fields/writer.h"
#include "moonhalo/io/formats/attributes.h"

namespace moonhalo::io {
namespace {

h5::Where about_write(const char* op, const std::string& path, const std::string& dataset) {
  return {op, path, "dataset \"" + dataset + "\""};
}

void check_tensor(const at::Tensor& tensor, const h5::Where& where) {
  TORCH_CHECK_VALUE(tensor.defined(), where.to_string(),
                    ": no tensor was given\n  have  an undefined tensor\n  fix   give a tensor");
}

void refuse_follower(const FileState& file, const h5::Where& where) {
  TORCH_CHECK_VALUE(!file.follows(), where.to_string(),
                    ": only mesh rank 0 may do this now\n  have  a file that a ShardTensor was "
                    "written to\n  fix   do it before, or write a ShardTensor");
}

}  // namespace

void File::write(const std::string& name, const at::Tensor& tensor, const WriteOptions& options) {
  const auto where = about_write("write", path(), name);
  check_tensor(tensor, where);
  write_together(*state_, normalized(name), tensor, options, /*grows=*/false, where);
}

void File::append(const std::string& name, const at::Tensor& rows, const WriteOptions& options) {
  const auto where = about_write("append", path(), name);
  check_tensor(rows, where);
  write_together(*state_, normalized(name), rows, options, /*grows=*/true, where);
}

std::string File::flush() {
  const h5::Where where{"flush", path()};
  if (!state_->group()) return state_->flush(where);
  std::string unfinished;  // the owner's HDF5 file refers to what the others have put on disk
  for (const bool owner : {false, true}) {
    fail_together(*state_->group(), [&] {
      if (state_->follows() != owner) unfinished = state_->flush(where);
    });
  }
  return unfinished;
}

Dataset File::create_dataset(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype,
                             const WriteOptions& options) {
  const auto where = about_write("create_dataset", path(), name);
  refuse_follower(*state_, where);
  const std::string path = normalized(name);
  std::shared_ptr<DatasetInfo> info;
  state_->change(where, [&] {
    const auto access = state_->write(where);
    const h5::Handle dataset = create_dataset_in(access, path, shape, dtype, options, where);
    info = std::make_shared<DatasetInfo>(read_info(access.id, dataset.get(), path, where));
  });
  return {state_, std::move(info)};
}

void File::set_attr(const std::string& name, const AttributeValue& value, const std::string& object) {
  const h5::Where where{"set_attr", path(), "object \"" + object + "\""};
  const auto* text = std::get_if<std::string>(&value);
  state_->note_unwritten(text != nullptr ? std::ssize(*text) : static_cast<int64_t>(sizeof(int64_t)));
  change_together(*state_, where, [&] {
    const auto access = state_->write(where);
    const std::string target = normalized(object);
    TORCH_CHECK_VALUE(target.empty() || h5::link_exists(access.id, target, access.links), where.to_string(),
                      ": it does not exist\n  have  no dataset or group of that name"
                      "\n  fix   write it first");
    const h5::Handle id =
        h5::make(where, "open it", H5Oclose, [&] { return H5Oopen(access.id, ("/" + target).c_str(), access.links); });
    refuse_elsewhere(access.id, id.get(), where);
    h5::write_attribute(id.get(), name, value, where);
  });
}

void File::close() {
  const auto group = state_->is_open() ? state_->group() : nullptr;
  if (!group) return state_->close();
  const auto describe = [&] { return "file \"" + path() + "\""; };
  const CallScope scope(fingerprint_of("close"), "close", describe);
  try {  // the owner gives the file its name when the others have put on disk what they wrote
    fail_together(*group, [&] {
      if (state_->follows()) state_->flush({"close", path()});
    });
  } catch (const c10::Error& error) {
    state_->fail(error.what_without_backtrace());
  }
  fail_together(*group, [&] { state_->close(); });
  state_->note_finished();
}

void Dataset::write_block(at::IntArrayRef offsets, const at::Tensor& block) const {
  const auto where = about_write("write_block", path(), name());
  TORCH_CHECK_TYPE(!is_shard_tensor(block), where.to_string(),
                   ": a ShardTensor has no single place\n  have  a ShardTensor"
                   "\n  fix   use write() of the file, or write to_local() at its offsets");
  refuse_follower(*file_, where);
  const at::Tensor data = plain_data(block);
  file_->note_unwritten(data.numel() * static_cast<int64_t>(data.element_size()));
  file_->change(where, [&] {
    const auto access = file_->write(where);
    auto dataset = h5::open_dataset(access.id, "/" + name(), 0, &file_->reach(), where);
    refuse_elsewhere(access.id, dataset.get(), where);
    if (!file_->is_dry() || !is_fake(data)) write_part(dataset.get(), offsets, data, where);
    dataset.close(where);  // flushes chunks: a filter may fail
  });
}

void Dataset::set_attr(const std::string& name, const AttributeValue& value) const {
  File(file_).set_attr(name, value, this->name());
}

}  // namespace moonhalo::io
