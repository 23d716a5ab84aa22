// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/io/base/slices.h"
#include "moonhalo/io/formats/attribute_value.h"

/// HDF5 and NetCDF-4 files: named datasets with dimensions, units and other attributes, read and
/// written as tensors. NetCDF-3 files and Zarr folders are read alike.
///
///     auto air = io::open("air.nc")["air"];
///     at::Tensor t = air["0:100, :, ::2"].read({.dtype = at::kFloat, .decode = true});
///
/// Unless it says otherwise a call is local to its rank. Errors name call, dataset and file on
/// their first line, and are ValueError or TypeError for what the caller can mend, RuntimeError for
/// what the system or a damaged file causes.
namespace moonhalo::io {

class FileState;
struct DatasetInfo;
class Selection;

struct OpenOptions {
  /// A file may lead to others by external links, virtual datasets and external raw storage. Without this only to those
  /// of its folder and below, and never by raw storage.
  bool allow_external = false;
};

struct ReadOptions {
  /// The dtype of the result; the stored one (or, with decode, the decoded one) when absent.
  std::optional<at::ScalarType> dtype = {};
  /// Apply scale_factor, add_offset, _FillValue, missing_value and valid_range: NaN where a value
  /// is missing. See io/formats/decode.h.
  bool decode = false;
  /// Read into this contiguous CPU tensor, which has the selection's shape and, unless given,
  /// settles `dtype`.
  at::Tensor out = {};
};

struct WriteOptions {
  Attributes attrs = {};
  /// Names of the dimensions, which become those of NetCDF and CF: shared by all datasets of the group that have them.
  /// A 1-D dataset of a dimension's name holds its coordinates.
  std::vector<std::string> dims = {};
  std::vector<int64_t> chunks = {};  ///< empty: one contiguous run, or chosen when compressed
  int compression = 0;               ///< gzip level 1 to 9 behind a byte shuffle; 0 is none
  bool replace = false;              ///< an existing dataset of that name is an error otherwise
  /// Take over names of dims, attributes (but those of packing and missing values) and coordinates of the selected rows
  /// from this selection, whose shape is the tensor's. Only the rank that makes the dataset reads it.
  std::shared_ptr<const Selection> like = {};
};

/// One dataset of an open file; cheap to copy, keeps the file open.
class Dataset {
 public:
  Dataset(std::shared_ptr<FileState> file, std::shared_ptr<const DatasetInfo> info)
      : file_(std::move(file)), info_(std::move(info)) {}

  const std::string& name() const;  ///< path in the file, as "group/x"
  const std::string& path() const;  ///< of the file
  const std::vector<int64_t>& shape() const;
  int64_t ndim() const { return static_cast<int64_t>(shape().size()); }
  /// TypeError for types that no tensor holds (strings, compounds).
  at::ScalarType dtype() const;
  /// "float32", also for types without a dtype: "string", "compound".
  const std::string& type_name() const;
  /// Names of a compound's members; empty for all other types, and for complex numbers.
  const std::vector<std::string>& members() const;
  /// A member of a compound as a dataset, which has its dims and attributes; a member of a compound in it likewise.
  /// ValueError, with the nearest name, where there is none; TypeError where no tensor holds its type (text, ...).
  Dataset member(const std::string& name) const;
  const std::vector<int64_t>& chunks() const;       ///< empty unless stored in chunks
  const std::vector<std::string>& filters() const;  ///< as "shuffle", "gzip 4"
  Attributes attrs() const;
  /// ValueError, with the nearest name, when there is no such attribute.
  AttributeValue attr(const std::string& name) const;
  std::vector<std::string> dims() const;  ///< "" for one without a name
  std::string units() const;              ///< "" without a units attribute
  bool is_bare_dimension() const;         ///< a dimension of NetCDF without values: there is nothing to read

  /// Nothing is read until Selection::read. See parse_slices for the string.
  Selection select(const std::string& slices) const;
  Selection operator[](const std::string& slices) const;
  at::Tensor read(const ReadOptions& options = {}) const;

  /// Writes `block` with its first element at `offsets`, converted to the dataset's type.
  void write_block(at::IntArrayRef offsets, const at::Tensor& block) const;
  void set_attr(const std::string& name, const AttributeValue& value) const;

  const DatasetInfo& info() const { return *info_; }
  /// Returns the rows that are read together where data lie in the file as they are, as the shape of a chunk; else
  /// nothing.
  std::vector<int64_t> rows_together() const;
  const std::shared_ptr<FileState>& file() const { return file_; }

 private:
  std::shared_ptr<FileState> file_;
  std::shared_ptr<const DatasetInfo> info_;
};

/// A part of a dataset, described and not yet read.
class Selection {
 public:
  Selection(const Dataset& dataset);  // NOLINT: a dataset is the selection of all of it
  Selection(Dataset dataset, std::vector<Slice> slices);

  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t ndim() const { return static_cast<int64_t>(shape_.size()); }
  const Dataset& dataset() const { return dataset_; }
  const std::vector<Slice>& slices() const { return slices_; }
  std::vector<std::string> dims() const;  ///< of the dimensions that are left

  /// A selection of this selection.
  Selection select(const std::string& slices) const;
  Selection operator[](const std::string& slices) const { return select(slices); }
  /// The same rows of a member of a compound, see Dataset::member.
  Selection member(const std::string& name) const { return {dataset_.member(name), slices_}; }
  /// Rows [begin, begin + length) of a dimension of this selection. ValueError when they leave it.
  Selection narrow(int64_t dim, int64_t begin, int64_t length) const;

  /// The dtype that read(options) gives.
  at::ScalarType result_dtype(const ReadOptions& options = {}) const;
  /// Reads just these elements.
  at::Tensor read(const ReadOptions& options = {}) const;

 private:
  Dataset dataset_;
  std::vector<Slice> slices_;
  std::vector<int64_t> shape_;
};

/// An open file. Copies are the same file.
class File {
 public:
  explicit File(std::shared_ptr<FileState> state) : state_(std::move(state)) {}

  const std::string& path() const;
  bool is_open() const;
  /// "HDF5" (which NetCDF-4 is too), "NetCDF-3 (classic)", "Zarr 3", ...
  std::string format() const;

  /// Datasets and groups in a group, by name.
  std::vector<std::string> keys(const std::string& group = "/") const;
  /// Paths of all datasets, of every group.
  std::vector<std::string> datasets() const;
  bool has(const std::string& path) const;
  bool is_group(const std::string& path) const;
  /// ValueError, with the nearest name, when there is no such dataset.
  Dataset operator[](const std::string& name) const;
  Attributes attrs(const std::string& object = "/") const;
  AttributeValue attr(const std::string& name, const std::string& object = "/") const;

  /// Writes a tensor of any device and layout as a dataset; groups in the name are made. A
  /// ShardTensor is written by all ranks of its mesh into the one file that mesh rank 0 has open
  /// (collective over the mesh, see io/fields/write_together.h). From then on that rank alone writes plain
  /// tensors and attributes, in calls that all ranks make: an error of it is thrown on all.
  void write(const std::string& name, const at::Tensor& tensor, const WriteOptions& options = {});
  /// Adds rows along the first dimension of a dataset that can grow, which the first append makes with `options`.
  /// Otherwise as write. ValueError for rows of another shape, TypeError for another dtype.
  void append(const std::string& name, const at::Tensor& rows, const WriteOptions& options = {});
  /// A dataset to be filled by Dataset::write_block. Neither is collective: once ranks share the file only mesh rank 0
  /// may call them, others get a ValueError.
  Dataset create_dataset(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype,
                         const WriteOptions& options = {});
  void set_attr(const std::string& name, const AttributeValue& value, const std::string& object = "/");

  /// Puts all that was written so far on disk. Until close() it stands in the unfinished file whose path is returned: a
  /// whole file, which a crash leaves behind and the next writer of this path removes. Collective as close().
  std::string flush();
  /// Finishes the file: only now does it appear under its name. A file that is dropped without
  /// close() is finished too, but then a failure can only be a warning. Does nothing the second
  /// time. Collective over the mesh after a ShardTensor was written.
  void close();
  /// Closes a file being written without finishing it: what was there before stays.
  void discard() noexcept;

  const std::shared_ptr<FileState>& state() const { return state_; }

 private:
  std::shared_ptr<FileState> state_;
};

/// Opens a file by what it holds, whatever its name: "r" reads HDF5, NetCDF and Zarr; "w" makes an HDF5 file new, "a"
/// adds to one or makes it. A file being written stands under its name only after close(); until then the old one, if
/// any, is untouched.
File open(const std::string& path, const std::string& mode = "r", const OpenOptions& options = {});

/// Bytes of dataset elements, as stored before any filter, that this thread's reads have asked for
/// so far.
int64_t bytes_read();

}  // namespace moonhalo::io
