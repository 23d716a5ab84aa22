// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/io/base/slices.h"
#include "moonhalo/io/formats/attribute_value.h"

/// HDF5 and NetCDF-4 files: named datasets with dimensions, units and other attributes, read and written as tensors.
/// NetCDF-3 files and Zarr folders are read in the same way.
///
///     auto air = io::open("air.nc")["air"];
///     at::Tensor t = air["0:100, :, ::2"].read({.dtype = at::kFloat, .decode = true});
///
/// Calls are not collective unless their description says so. The first line of an error names call, dataset and file.
/// Errors that the caller can correct are ValueError or TypeError; those of the system or of a damaged file are
/// RuntimeError.
namespace moonhalo::io {

class FileState;
struct DatasetInfo;
class Selection;

/// Settings of open.
struct OpenOptions {
  /// Follow external links, virtual datasets and external raw storage to any file. If false, only to files in this
  /// file's folder and below, and raw storage is refused.
  bool allow_external = false;
  /// In a dry run: a file that is written is made in memory, without the elements of tensors, and no file on disk.
  bool is_dry = false;
};

/// Settings of reads.
struct ReadOptions {
  /// The dtype of the result. The default is the stored dtype, or the decoded one with `decode`.
  std::optional<at::ScalarType> dtype = {};
  /// Apply scale_factor, add_offset, _FillValue, missing_value and valid_range; missing values become NaN. See
  /// io/formats/decode.h.
  bool decode = false;
  /// Read into this contiguous CPU tensor of the selection's shape. It also sets the default of `dtype`.
  at::Tensor out = {};
};

/// Settings of a new dataset.
struct WriteOptions {
  /// Attributes of the dataset, by name.
  Attributes attrs = {};
  /// Names of the dimensions, as in NetCDF and CF: all datasets of the group with such a dimension share it. A 1-D
  /// dataset with a dimension's name holds its coordinates.
  std::vector<std::string> dims = {};
  std::vector<int64_t> chunks = {};  ///< empty: contiguous, or chosen automatically if compressed
  int compression = 0;               ///< gzip level 1 to 9 with byte shuffle; 0: none
  bool replace = false;              ///< replace an existing dataset of that name; false: throw
  /// Copy dimension names, attributes (except those of packing and missing values) and the coordinates of the selected
  /// rows from this selection. Its shape is the tensor's. Only the rank that makes the dataset reads it.
  std::shared_ptr<const Selection> like = {};
};

/// A dataset of an open file. It is cheap to copy and keeps the file open.
class Dataset {
 public:
  Dataset(std::shared_ptr<FileState> file, std::shared_ptr<const DatasetInfo> info)
      : file_(std::move(file)), info_(std::move(info)) {}

  const std::string& name() const;  ///< path in the file, such as "group/x"
  const std::string& path() const;  ///< path of the file
  /// The sizes of the dims, and their number.
  const std::vector<int64_t>& shape() const;
  int64_t ndim() const { return static_cast<int64_t>(shape().size()); }
  /// Throws TypeError for types without a tensor dtype (strings, compounds).
  at::ScalarType dtype() const;
  /// Returns the type's name, such as "float32"; also "string" or "compound".
  const std::string& type_name() const;
  /// Returns the names of a compound's members; empty for all other types, and for complex numbers.
  const std::vector<std::string>& members() const;
  /// Returns a member of a compound as a dataset with the same dims and attributes; also a member of a nested compound.
  /// Throws ValueError, with the nearest name, if there is none, and TypeError if its type has no tensor dtype (text,
  /// ...).
  Dataset member(const std::string& name) const;
  const std::vector<int64_t>& chunks() const;       ///< empty if not chunked
  const std::vector<std::string>& filters() const;  ///< such as "shuffle", "gzip 4"
  /// All attributes, by name.
  Attributes attrs() const;
  /// Throws ValueError, with the nearest name, if there is no such attribute.
  AttributeValue attr(const std::string& name) const;
  std::vector<std::string> dims() const;  ///< "" for a dim without a name
  std::string units() const;              ///< "" without a units attribute
  bool is_bare_dimension() const;         ///< a NetCDF dimension without values; it cannot be read

  /// Describes a part of the dataset (see parse_slices); Selection::read reads it.
  Selection select(const std::string& slices) const;
  Selection operator[](const std::string& slices) const;
  at::Tensor read(const ReadOptions& options = {}) const;

  /// Writes `block` at `offsets` (the index of its first element), converted to the dataset's type.
  void write_block(at::IntArrayRef offsets, const at::Tensor& block) const;
  void set_attr(const std::string& name, const AttributeValue& value) const;

  /// For the functions of io/fields.
  const DatasetInfo& info() const { return *info_; }
  /// Returns the shape of the rows that are best read together, as a chunk shape; empty unless elements can be read
  /// directly from the file.
  std::vector<int64_t> rows_together() const;
  const std::shared_ptr<FileState>& file() const { return file_; }

 private:
  std::shared_ptr<FileState> file_;
  std::shared_ptr<const DatasetInfo> info_;
};

/// A part of a dataset, not yet read.
class Selection {
 public:
  Selection(const Dataset& dataset);  // NOLINT: a dataset is the selection of all of it
  Selection(Dataset dataset, std::vector<Slice> slices);

  /// The sizes of the dims that are not dropped, and their number; the dataset; the selection per dim of the dataset.
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t ndim() const { return static_cast<int64_t>(shape_.size()); }
  const Dataset& dataset() const { return dataset_; }
  const std::vector<Slice>& slices() const { return slices_; }
  std::vector<std::string> dims() const;  ///< of the dims that are not dropped

  /// Returns a selection of this selection.
  Selection select(const std::string& slices) const;
  Selection operator[](const std::string& slices) const { return select(slices); }
  /// Returns the same rows of a compound's member, see Dataset::member.
  Selection member(const std::string& name) const { return {dataset_.member(name), slices_}; }
  /// Returns rows [begin, begin + length) of a dim of this selection. Throws ValueError if they are out of range.
  Selection narrow(int64_t dim, int64_t begin, int64_t length) const;

  /// Returns the dtype of read(options).
  at::ScalarType result_dtype(const ReadOptions& options = {}) const;
  /// Reads the selected elements, and no others.
  at::Tensor read(const ReadOptions& options = {}) const;

 private:
  Dataset dataset_;
  std::vector<Slice> slices_;
  std::vector<int64_t> shape_;
};

/// An open file. Copies refer to the same file.
class File {
 public:
  explicit File(std::shared_ptr<FileState> state) : state_(std::move(state)) {}

  /// The path that `open` got; false after close() or discard().
  const std::string& path() const;
  bool is_open() const;
  /// Returns "HDF5" (also for NetCDF-4), "NetCDF-3 (classic)", "Zarr 3", ...
  std::string format() const;

  /// Returns the names of the datasets and groups in a group.
  std::vector<std::string> keys(const std::string& group = "/") const;
  /// Returns the paths of all datasets of all groups.
  std::vector<std::string> datasets() const;
  bool has(const std::string& path) const;
  bool is_group(const std::string& path) const;
  /// Throws ValueError, with the nearest name, if there is no such dataset.
  Dataset operator[](const std::string& name) const;
  Attributes attrs(const std::string& object = "/") const;
  AttributeValue attr(const std::string& name, const std::string& object = "/") const;

  /// Writes a tensor of any device and layout as a dataset; missing groups of the name are created. For a ShardTensor
  /// the call is collective over its mesh: all ranks write into the one file that mesh rank 0 has open (see
  /// io/fields/write_together.h). Afterwards only that rank writes plain tensors and attributes. All ranks still make
  /// these calls, which are collective from then on, and its errors are thrown on all.
  void write(const std::string& name, const at::Tensor& tensor, const WriteOptions& options = {});
  /// Appends rows along dim 0 of an extendable dataset. The first append creates it with `options`. Collective as
  /// write. Throws ValueError for rows of another shape and TypeError for another dtype.
  void append(const std::string& name, const at::Tensor& rows, const WriteOptions& options = {});
  /// Creates a dataset for Dataset::write_block. Neither is collective: once ranks share the file, only mesh rank 0 may
  /// call them; other ranks get a ValueError.
  Dataset create_dataset(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype,
                         const WriteOptions& options = {});
  void set_attr(const std::string& name, const AttributeValue& value, const std::string& object = "/");

  /// Writes everything to disk. Returns the path of the unfinished file, which is complete and readable: it keeps this
  /// name until close(). If the program crashes, it remains, and the next writer of this path removes it. Collective as
  /// close().
  std::string flush();
  /// Completes the file and moves it to its name. The destructor of the last copy does so too, but can only warn of an
  /// error. A second call does nothing. Collective over the mesh if a ShardTensor was written. Of a path that several
  /// ranks opened, the file of a rank that wrote something gets the name; RuntimeError on the later ranks if they wrote
  /// datasets of other names or shapes.
  void close();
  /// Closes an unfinished file and deletes it; an earlier file of that name remains.
  void discard() noexcept;

  /// For the functions of io/fields.
  const std::shared_ptr<FileState>& state() const { return state_; }

 private:
  std::shared_ptr<FileState> state_;
};

/// Opens a file; its content, not its name, determines the format. "r" reads HDF5, NetCDF and Zarr; "w" creates an HDF5
/// file; "a" adds to an existing one or creates it. A file that is being written gets its name only in close(); until
/// then an earlier file of that name is unchanged.
File open(const std::string& path, const std::string& mode = "r", const OpenOptions& options = {});

/// Returns the bytes of dataset elements, counted before filters, that reads of this thread have requested so far.
int64_t bytes_read();

}  // namespace moonhalo::io
