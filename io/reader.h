// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/io/array_map.h"
#include "moonhalo/io/file_state.h"
#include "moonhalo/io/slices.h"

namespace moonhalo::io {

/// The facts of a dataset's header, read once.
struct DatasetInfo {
  std::string name;  ///< path in the file, without a leading slash
  std::vector<int64_t> shape;
  std::optional<at::ScalarType> dtype;  ///< nothing where no tensor holds its type
  std::string type_name;
  bool enumeration = false;
  bool native = false;               ///< stored as a tensor of `dtype` lies in memory
  std::vector<int64_t> chunks;       ///< empty unless stored in chunks
  std::vector<std::string> filters;  ///< "gzip 4", "shuffle", ...; a filter the library lacks says so
  std::optional<uint64_t> offset;    ///< where its bytes begin in the opened file, if they are one plain run there
  std::optional<ArrayMap> map;       ///< of chunks whose codecs are known here; they lie in the opened file
  size_t element_size = 0;
  std::string damage;  ///< why it must not be read, as HDF5 would read memory that it does not have; usually empty
};

/// `file`: the opened one, which an external link of it may have left.
DatasetInfo read_info(hid_t file, hid_t dataset, const std::string& name, const h5::Where& where);

/// A selection as HDF5 reads it: the dataset, and the elements in the file and in memory.
struct Selected {
  std::shared_ptr<h5::Handle> dataset;
  h5::Handle file, memory;
};

/// Reads one selection of a dataset, whole or in pieces. Holds the file open for as long as it
/// lives.
class Reader {
 public:
  /// `slices`: one per dimension of the dataset; all that will be asked for, so that chunks are
  /// kept between pieces.
  Reader(FileState& file, const DatasetInfo& info, const std::vector<Slice>& slices, const h5::Where& where);

  /// Fills `out`, room for the slices' elements as `dtype`, which is the dataset's own or one that
  /// HDF5 converts to.
  ///
  /// A dataset that lies in the file as it will in memory (contiguous, no filter, native byte
  /// order) is read with positioned reads straight into `out`: they need no lock, so thread ranks
  /// read at the same time. Chunks that went through common filters are decoded in LibTorch's threads (ChunkReader), if
  /// `dtype` is the dataset's own. Everything else goes through H5Dread, one thread at a time. Integers
  /// that do not fit `dtype` are a ValueError.
  void read(const std::vector<Slice>& slices, at::ScalarType dtype, void* out);

  /// True if chunks are decoded here. Only HDF5 knows what a file holds that is being written.
  static bool decodes(const FileState& file, const DatasetInfo& info) {
    return info.map && !info.map->codecs.empty() && file.descriptor() >= 0;
  }
  /// The cells of a grid over the dataset, dense in `out`, as the dataset's own dtype. Where decodes().
  void read_cells(const ChunkGrid& grid, const Box& cells, void* out);
  /// For a call of HDF5 while this Reader lives.
  Selected select(const std::vector<Slice>& slices);

 private:
  bool is_plain(const std::vector<Slice>& slices, at::ScalarType dtype) const;
  void read_plain(const std::vector<Slice>& slices, char* out) const;
  void read_run(char* out, uint64_t offset, size_t bytes) const;
  void read_rows(char* out, uint64_t offset, size_t bytes, size_t stride, int64_t count) const;
  void read_library(const std::vector<Slice>& slices, at::ScalarType dtype, void* out);

  FileState& file_;
  const DatasetInfo& info_;
  const h5::Where& where_;
  std::shared_ptr<h5::Handle> dataset(size_t cache_bytes);

  size_t cache_bytes_ = 0;
  FileState::Access access_;
};

}  // namespace moonhalo::io
