// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/fields/writer.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/io/base/h5_types.h"
#include "moonhalo/io/formats/attributes.h"
#include "moonhalo/io/formats/link_policy.h"
#include "moonhalo/io/formats/scales.h"

namespace moonhalo::io {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;
constexpr int64_t kRowsBytes = int64_t{64} << 10;

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

/// Chunks of a dataset that grows by rows hold rows of at least 64 KiB together, or parts of longer ones.
std::vector<int64_t> growing_chunks(at::IntArrayRef rows, int64_t element_size) {
  std::vector<int64_t> one = rows.vec();
  one[0] = 1;
  std::vector<int64_t> chunks = default_chunks(one, element_size);
  int64_t bytes = element_size;
  for (const int64_t extent : chunks) bytes *= extent;
  chunks[0] = std::max<int64_t>(1, kRowsBytes / std::max<int64_t>(bytes, 1));
  return chunks;
}

/// Decides how the dataset is in the file; empty datasets and scalars cannot be chunked.
h5::Handle layout(at::IntArrayRef shape, int64_t element_size, const WriteOptions& options, bool grows,
                  const h5::Where& where) {
  h5::Handle list = h5::new_dataset_list(where);
  const bool empty = !grows && std::find(shape.begin(), shape.end(), 0) != shape.end();
  const bool chunked = grows || !options.chunks.empty() || options.compression > 0;
  TORCH_CHECK_VALUE(options.compression >= 0 && options.compression <= 9, where.to_string(), ": compression ",
                    options.compression, " is not a gzip level\n  have  ", options.compression,
                    "\n  fix   use 1 (fast) to 9 (small), or 0 for none");
  TORCH_CHECK_VALUE(options.chunks.empty() ||
                        (options.chunks.size() == shape.size() &&
                         std::all_of(options.chunks.begin(), options.chunks.end(), [](auto n) { return n > 0; })),
                    where.to_string(), ": chunks ", shape_string(options.chunks), " do not fit\n  have  shape ",
                    shape_string(shape), "\n  fix   give one size of at least 1 per dimension");
  if (!chunked || empty || shape.empty()) {
    h5::checked(where, "choose its layout", [&] { return H5Pset_alloc_time(list.get(), H5D_ALLOC_TIME_EARLY); });
    h5::checked(where, "choose its layout", [&] { return H5Pset_fill_time(list.get(), H5D_FILL_TIME_NEVER); });
    return list;
  }
  const auto chunks = !options.chunks.empty() ? options.chunks
                      : grows                 ? growing_chunks(shape, element_size)
                                              : default_chunks(shape, element_size);
  std::vector<hsize_t> sizes;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    const bool may_be_longer = grows && dim == 0;
    const int64_t size = may_be_longer ? chunks[dim] : std::min(chunks[dim], shape[dim]);
    sizes.push_back(static_cast<hsize_t>(std::max<int64_t>(size, 1)));  // of rows without elements too
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

void remove_existing(const FileState::Access& file, const std::string& path, const std::string& name, bool replace,
                     NewScales& scales, const h5::Where& where) {
  if (!h5::link_exists(file.id, name, file.links)) return;
  TORCH_CHECK_VALUE(replace || scales.takes_place(), where.to_string(),
                    ": it exists already\n  have  a dataset or group of that name"
                    "\n  fix   choose another name, or pass replace = true");
  scales.detach();
  h5::checked(where, "replace it", [&] { return H5Ldelete(file.id, path.c_str(), file.links); });
}

void check_labels(at::IntArrayRef shape, const std::vector<std::string>& dims, const h5::Where& where) {
  TORCH_CHECK_VALUE(dims.empty() || dims.size() == shape.size(), where.to_string(), ": ", dims.size(), " names for ",
                    shape.size(), " dimensions\n  have  ", c10::Join(", ", dims),
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

void refuse_elsewhere(hid_t file, hid_t object, const h5::Where& where) {
  TORCH_CHECK_VALUE(h5::is_in_file(file, object, where), where.to_string(),
                    ": it is in another file\n  have  a link that leads there", "\n  fix   open that file for writing");
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

void make_groups(const FileState::Access& file, const std::string& name, const h5::Where& where) {
  const h5::Handle list = h5::new_group_list(where);
  for (size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
    const std::string group = "/" + name.substr(0, slash);
    if (h5::link_exists(file.id, group, file.links)) continue;
    h5::make(where, "make its groups", H5Gclose,
             [&] { return H5Gcreate2(file.id, group.c_str(), H5P_DEFAULT, list.get(), H5P_DEFAULT); });
  }
}

/// A file with dimensions says by which conventions to read it.
void name_conventions(hid_t file, const h5::Where& where) {
  if (h5::checked(where, "look for an attribute", [&] { return H5Aexists(file, "Conventions"); }) > 0) return;
  const h5::Handle root = h5::make(where, "open it", H5Gclose, [&] { return H5Gopen2(file, "/", H5P_DEFAULT); });
  h5::write_attribute(root.get(), "Conventions", std::string("CF-1.8"), where);
  for (const auto& [name, value] : h5::read_attributes(root.get(), where)) {  // text as readers of NetCDF want it
    if (std::holds_alternative<std::string>(value)) h5::write_attribute(root.get(), name, value, where);
  }
}

h5::Handle create_dataset_in(const FileState::Access& file, const std::string& name, at::IntArrayRef shape,
                             at::ScalarType dtype, const WriteOptions& options, const h5::Where& where, bool grows) {
  check_labels(shape, options.dims, where);
  const h5::Handle type = h5::tensor_type(dtype, where);
  const std::string path = "/" + name;
  const auto element_size = static_cast<int64_t>(at::elementSize(dtype));
  const h5::Handle creation = layout(shape, element_size, options, grows, where);
  std::vector<hsize_t> most(shape.begin(), shape.end());
  if (grows) most[0] = H5S_UNLIMITED;
  const h5::Handle space = h5::simple_space(std::vector<hsize_t>(shape.begin(), shape.end()), where, most);
  TORCH_CHECK_VALUE(!name.empty(), where.to_string(),
                    ": a dataset needs a name\n  have  an empty name\n  fix   give one");
  check_groups(file, name, where);
  h5::check_attributes(options.attrs, type.get(), where);
  NewScales scales(file, name, shape, options.dims, grows, where);
  remove_existing(file, path, name, options.replace, scales, where);
  make_groups(file, name, where);
  h5::Handle dataset = h5::make(where, "create it", H5Dclose, [&] {
    return H5Dcreate2(file.id, path.c_str(), type.get(), space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT);
  });
  if (!options.dims.empty()) name_conventions(file.id, where);
  for (const auto& [key, value] : options.attrs) {
    h5::write_attribute(dataset.get(), key, value, where);
  }
  scales.attach(dataset.get());
  return dataset;
}

at::Tensor plain_data(const at::Tensor& tensor) {
  return materialize_lazy_bits(tensor.detach()).to(at::kCPU).contiguous();
}

void write_part(hid_t dataset, at::IntArrayRef offsets, const at::Tensor& block, const h5::Where& where) {
  const DatasetInfo info = read_info(dataset, dataset, "", where);
  TORCH_CHECK_TYPE(info.dtype, where.to_string(), ": a tensor cannot be written to type ", info.type_name,
                   "\n  have  a tensor of dtype ", h5::dtype_name(block.scalar_type()),
                   "\n  fix   write to a dataset of numbers");
  bool fits = offsets.size() == info.shape.size() && block.sizes().size() == info.shape.size();
  for (size_t dim = 0; fits && dim < offsets.size(); ++dim) {
    fits = offsets[dim] >= 0 && offsets[dim] + block.size(static_cast<int64_t>(dim)) <= info.shape[dim];
  }
  TORCH_CHECK_VALUE(fits, where.to_string(), ": a block of shape ", shape_string(block.sizes()), " at ",
                    shape_string(offsets), " does not fit\n  have  shape ", shape_string(info.shape),
                    "\n  fix   stay inside the dataset");
  if (block.numel() == 0) return;
  check_computed(block, where.to_string() + ": the block");
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

std::pair<h5::Handle, int64_t> grow_dataset_in(const FileState::Access& file, const std::string& name,
                                               at::IntArrayRef rows, at::ScalarType dtype, const WriteOptions& options,
                                               const h5::Where& where) {
  TORCH_CHECK_VALUE(!rows.empty(), where.to_string(),
                    ": a tensor without dimensions has no rows\n  have  a scalar"
                    "\n  fix   append x:reshape{1}, or {3} for the number 3");
  const bool there = h5::link_exists(file.id, name, file.links);
  h5::Handle dataset = there ? h5::open_dataset(file.id, "/" + name, 0, nullptr, where) : h5::Handle();
  if (!there || is_bare_dimension(dataset.get(), where)) {
    dataset.reset();
    return {create_dataset_in(file, name, rows, dtype, options, where, /*grows=*/true), 0};
  }
  refuse_elsewhere(file.id, dataset.get(), where);
  const DatasetInfo info = read_info(file.id, dataset.get(), name, where);
  const h5::Handle space = h5::space_of(dataset.get(), where);
  std::vector<hsize_t> most(info.shape.size());
  h5::checked(where, "read its shape", [&] { return H5Sget_simple_extent_dims(space.get(), nullptr, most.data()); });
  TORCH_CHECK_VALUE(!most.empty() && most[0] == H5S_UNLIMITED && !info.chunks.empty() && info.damage.empty(),
                    where.to_string(), ": it cannot grow\n  have  a dataset of fixed shape ", shape_string(info.shape),
                    "\n  fix   let append() make it, or make it with an unlimited first dimension");
  TORCH_CHECK_VALUE(
      info.shape.size() == rows.size() && std::equal(rows.begin() + 1, rows.end(), info.shape.begin() + 1),
      where.to_string(), ": rows of another shape\n  have  shape ", shape_string(rows), " for a dataset of shape ",
      shape_string(info.shape), "\n  fix   append tensors that differ in their first dimension only");
  TORCH_CHECK_TYPE(info.dtype == dtype, where.to_string(), ": rows of another dtype\n  have  ", h5::dtype_name(dtype),
                   " for a dataset of ", info.type_name, "\n  fix   convert the tensor to one of numbers");
  TORCH_CHECK_VALUE(
      options.dims.empty() || options.dims == h5::dimension_names(dataset.get(), name, rows.size(), where),
      where.to_string(), ": dims of another order or name than it has\n  have  ", c10::Join(", ", options.dims),
      "\n  fix   leave `dims` out, or give those of the first append");
  std::vector<hsize_t> shape(info.shape.begin(), info.shape.end());
  shape[0] += static_cast<hsize_t>(rows[0]);
  h5::checked(where, "let it grow", [&] { return H5Dset_extent(dataset.get(), shape.data()); });
  grow_scale(dataset.get(), shape[0], where);
  return {std::move(dataset), info.shape[0]};
}

}  // namespace moonhalo::io
