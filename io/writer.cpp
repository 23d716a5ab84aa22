// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/writer.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/h5_types.h"

namespace moonhalo::io {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;

h5::Where about(const char* op, const std::string& path, const std::string& dataset) {
  return {op, path, "dataset \"" + dataset + "\""};
}

/// Chunks have about a MiB and are cut in the leading dims: what is read together stays together.
std::vector<int64_t> default_chunks(at::IntArrayRef shape, int64_t element_size) {
  std::vector<int64_t> chunks = shape.vec();
  int64_t bytes = element_size;
  for (const int64_t extent : chunks) bytes *= extent;
  for (int64_t& rows : chunks) {
    while (bytes > kChunkBytes && rows > 1) {
      bytes /= rows;
      rows = (rows + 1) / 2;
      bytes *= rows;
    }
  }
  return chunks;
}

/// Decides how the dataset lies in the file; empty datasets and scalars cannot be chunked.
h5::Handle layout(at::IntArrayRef shape, int64_t element_size, const WriteOptions& options, const h5::Where& where) {
  h5::Handle list = h5::property_list(H5P_DATASET_CREATE, where);
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  const bool chunked = !options.chunks.empty() || options.compression > 0;
  TORCH_CHECK_VALUE(options.compression >= 0 && options.compression <= 9, where.to_string(),
                    ": compression ", options.compression, " is not a gzip level\n  have  ",
                    options.compression, "\n  fix   use 1 (fast) to 9 (small), or 0 for none");
  TORCH_CHECK_VALUE(
      options.chunks.empty() ||
          (options.chunks.size() == shape.size() &&
           std::all_of(options.chunks.begin(), options.chunks.end(), [](auto n) { return n > 0; })),
      where.to_string(), ": chunks ", shape_string(options.chunks), " do not fit\n  have  shape ",
      shape_string(shape), "\n  fix   give one size of at least 1 per dimension");
  if (!chunked || empty || shape.empty()) {
    h5::checked(where, "choose its layout", [&] { return H5Pset_alloc_time(list.get(), H5D_ALLOC_TIME_EARLY); });
    h5::checked(where, "choose its layout", [&] { return H5Pset_fill_time(list.get(), H5D_FILL_TIME_NEVER); });
    return list;
  }
  const auto chunks = options.chunks.empty() ? default_chunks(shape, element_size) : options.chunks;
  std::vector<hsize_t> sizes;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    sizes.push_back(static_cast<hsize_t>(std::min(chunks[dim], shape[dim])));
  }
  h5::checked(where, "choose its chunks",
              [&] { return H5Pset_chunk(list.get(), static_cast<int>(sizes.size()), sizes.data()); });
  if (options.compression > 0) {
    h5::checked(where, "choose its filters", [&] { return H5Pset_shuffle(list.get()); });
    h5::checked(where, "choose its filters",
                [&] { return H5Pset_deflate(list.get(), static_cast<unsigned>(options.compression)); });
  }
  return list;
}

void make_room(const FileState::Access& file, const std::string& path, const std::string& name, bool replace,
               const h5::Where& where) {
  TORCH_CHECK_VALUE(!name.empty(), where.to_string(),
                    ": a dataset needs a name\n  have  an empty name\n  fix   give one");
  if (!h5::link_exists(file.id, name, file.links)) return;
  TORCH_CHECK_VALUE(replace, where.to_string(),
                    ": it exists already\n  have  a dataset or group of that name"
                    "\n  fix   choose another name, or pass replace = true");
  h5::checked(where, "replace it", [&] { return H5Ldelete(file.id, path.c_str(), file.links); });
}

void check_labels(at::IntArrayRef shape, const std::vector<std::string>& dims, const h5::Where& where) {
  TORCH_CHECK_VALUE(dims.empty() || dims.size() == shape.size(), where.to_string(), ": ", dims.size(),
                    " names for ", shape.size(), " dimensions\n  have  ", c10::Join(", ", dims),
                    "\n  fix   give one name per dimension");
}

}  // namespace

std::string normalized(const std::string& path) {
  std::string result;
  for (const char c : path) {
    if (c == '/' && (result.empty() || result.back() == '/')) continue;
    result += c;
  }
  if (!result.empty() && result.back() == '/') result.pop_back();
  return result;
}

/// A file that a link leads to would be changed in place, without the copy that a failure leaves untouched.
void refuse_elsewhere(hid_t file, hid_t object, const h5::Where& where) {
  TORCH_CHECK_VALUE(h5::lies_in(file, object, where), where.to_string(), ": it lies in another file\n  have  a link that leads there",
                    "\n  fix   open that file for writing");
}

/// The groups that a new dataset is to stand in, as far as they are there.
void check_groups(const FileState::Access& file, const std::string& name, const h5::Where& where) {
  for (size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
    const std::string group = name.substr(0, slash);
    if (!h5::link_exists(file.id, group, file.links)) return;
    const h5::Handle id =
        h5::make(where, "open its group", H5Oclose, [&] { return H5Oopen(file.id, group.c_str(), file.links); });
    refuse_elsewhere(file.id, id.get(), where);
  }
}

h5::Handle create_dataset_in(const FileState::Access& file, const std::string& name, at::IntArrayRef shape,
                             at::ScalarType dtype, const WriteOptions& options, const h5::Where& where) {
  check_labels(shape, options.dims, where);
  const h5::Handle type = h5::tensor_type(dtype, where);
  const std::string path = "/" + name;
  const auto element_size = static_cast<int64_t>(at::elementSize(dtype));
  const h5::Handle creation = layout(shape, element_size, options, where);
  const h5::Handle space = h5::simple_space(std::vector<hsize_t>(shape.begin(), shape.end()), where);
  const h5::Handle links = h5::property_list(H5P_LINK_CREATE, where);
  h5::checked(where, "make its groups", [&] { return H5Pset_create_intermediate_group(links.get(), 1); });
  check_groups(file, name, where);
  make_room(file, path, name, options.replace, where);
  h5::Handle dataset = h5::make(where, "create it", H5Dclose, [&] {
    return H5Dcreate2(file.id, path.c_str(), type.get(), space.get(), links.get(), creation.get(), H5P_DEFAULT);
  });
  if (!options.dims.empty()) h5::write_attribute(dataset.get(), "DIMENSION_LABELS", options.dims, where);
  for (const auto& [key, value] : options.attrs) {
    h5::write_attribute(dataset.get(), key, value, where);
  }
  return dataset;
}

at::Tensor plain_data(const at::Tensor& tensor) { return carried_out(tensor.detach()).to(at::kCPU).contiguous(); }

void write_part(hid_t dataset, at::IntArrayRef offsets, const at::Tensor& block, const h5::Where& where) {
  const DatasetInfo info = read_info(dataset, dataset, "", where);
  TORCH_CHECK_TYPE(info.dtype, where.to_string(), ": a tensor cannot be written to type ",
                   info.type_name, "\n  have  a tensor of dtype ",
                   h5::dtype_name(block.scalar_type()), "\n  fix   write to a dataset of numbers");
  bool fits = offsets.size() == info.shape.size() && block.sizes().size() == info.shape.size();
  for (size_t dim = 0; fits && dim < offsets.size(); ++dim) {
    fits = offsets[dim] >= 0 && offsets[dim] + block.size(static_cast<int64_t>(dim)) <= info.shape[dim];
  }
  TORCH_CHECK_VALUE(fits, where.to_string(), ": a block of shape ", shape_string(block.sizes()),
                    " at ", shape_string(offsets), " does not fit\n  have  shape ",
                    shape_string(info.shape), "\n  fix   stay inside the dataset");
  if (block.numel() == 0) return;
  const at::Tensor data = plain_data(block).to(*info.dtype);
  const h5::Handle file_type = h5::type_of(dataset, where);
  const h5::Handle memory = h5::memory_type(file_type.get(), *info.dtype, where);
  const h5::Handle file_space = h5::space_of(dataset, where);
  const std::vector<hsize_t> begin(offsets.begin(), offsets.end());
  const std::vector<hsize_t> count(data.sizes().begin(), data.sizes().end());
  if (!begin.empty()) {
    h5::checked(where, "select a part of it", [&] {
      return H5Sselect_hyperslab(file_space.get(), H5S_SELECT_SET, begin.data(), nullptr, count.data(), nullptr);
    });
  }
  const h5::Handle memory_space = h5::simple_space(count, where);
  h5::checked(where, "write it", [&] {
    return H5Dwrite(dataset, memory.get(), memory_space.get(), file_space.get(), H5P_DEFAULT, data.const_data_ptr());
  });
}

void File::write(const std::string& name, const at::Tensor& tensor, const WriteOptions& options) {
  const auto where = about("write", path(), name);
  TORCH_CHECK_VALUE(tensor.defined(), where.to_string(),
                    ": no tensor was given\n  have  an undefined tensor\n  fix   give a tensor");
  if (is_shard_tensor(tensor)) return write_shards(*state_, normalized(name), tensor, options);
  if (state_->follows()) return;  // mesh rank 0 writes it, from its own equal copy
  const at::Tensor data = plain_data(tensor);
  state_->change(where, [&] {
    const auto access = state_->write(where);
    h5::Handle dataset = create_dataset_in(access, normalized(name), data.sizes(), data.scalar_type(), options, where);
    write_part(dataset.get(), std::vector<int64_t>(static_cast<size_t>(data.dim()), 0), data, where);
    dataset.close(where);  // flushes chunks: a filter may fail
  });
}

namespace {

void refuse_follower(const FileState& file, const h5::Where& where) {
  TORCH_CHECK_VALUE(!file.follows(), where.to_string(),
                    ": only mesh rank 0 may do this now\n  have  a file that a ShardTensor was "
                    "written to\n  fix   do it before, or write a ShardTensor");
}

}  // namespace

Dataset File::create_dataset(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype,
                             const WriteOptions& options) {
  const auto where = about("create_dataset", path(), name);
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
  if (state_->follows()) return;
  state_->change(where, [&] {
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
  if (group) {
    fail_together(*group, [&] { state_->close(); });
  } else {
    state_->close();
  }
}

void Dataset::write_block(at::IntArrayRef offsets, const at::Tensor& block) const {
  const auto where = about("write_block", path(), name());
  TORCH_CHECK_TYPE(!is_shard_tensor(block), where.to_string(),
                   ": a ShardTensor has no single place\n  have  a ShardTensor"
                   "\n  fix   use file:write, or write to_local() at its offsets");
  refuse_follower(*file_, where);
  const at::Tensor data = plain_data(block);
  file_->change(where, [&] {
    const auto access = file_->write(where);
    auto dataset = h5::open_dataset(access.id, "/" + name(), 0, &file_->reach(), where);
    refuse_elsewhere(access.id, dataset.get(), where);
    write_part(dataset.get(), offsets, data, where);
    dataset.close(where);  // flushes chunks: a filter may fail
  });
}

void Dataset::set_attr(const std::string& name, const AttributeValue& value) const {
  File(file_).set_attr(name, value, this->name());
}

}  // namespace moonhalo::io
