// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <memory>
#include <string>
#include <vector>

#include "moonhalo/io/base/slices.h"
#include "moonhalo/io/formats/dataset_info.h"
#include "moonhalo/io/formats/file_state.h"
#include "moonhalo/io/formats/plain_reader.h"

namespace moonhalo::io {

/// `file`: the opened one, which an external link of it may have left.
DatasetInfo read_info(hid_t file, hid_t dataset, const std::string& name, const h5::Where& where);

/// Describes a member of a compound as a dataset of its own, which HDF5 reads. ValueError, with the nearest name, where
/// there is none of that name; TypeError for a member whose type no tensor holds.
DatasetInfo member_info(hid_t dataset, const DatasetInfo& info, const std::string& member, const h5::Where& where);

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

  /// Fills `out`, space for the slices' elements as `dtype`, which is the dataset's own or one that HDF5 converts
  /// to.
  ///
  /// A dataset that is stored in the file as it will be in memory (contiguous, no filter, native byte order) is
  /// read with positioned reads straight into `out` (plain_reader.h): they need no lock, so thread ranks read at
  /// the same time. Chunks that went through common filters are decoded in LibTorch's threads (ChunkReader), if
  /// `dtype` is the dataset's own. Everything else goes through H5Dread, one thread at a time. Integers that do
  /// not fit `dtype` are a ValueError.
  void read(const std::vector<Slice>& slices, at::ScalarType dtype, void* out);
  /// The same, for other ranks too: it counts as asked for where it is needed.
  void read_for_all(const std::vector<Slice>& slices, at::ScalarType dtype, void* out);
  /// Elements of any type, as they are stored. Of a file that is not HDF5.
  void read_stored(const std::vector<Slice>& slices, void* out);

  /// True if chunks are decoded here. Only HDF5 has what a file contains that is being written.
  static bool decodes(const FileState& file, const DatasetInfo& info) {
    return info.map && (info.source || (!info.map->codecs.empty() && file.descriptor() >= 0));
  }
  /// True if read() takes elements as they are in the file, in any number of runs.
  static bool is_plain(const FileState& file, const DatasetInfo& info, const std::vector<Slice>& slices);
  static PlainArray plain_array(const FileState& file, const DatasetInfo& info);
  /// The cells of a grid over the dataset, dense in `out`, as the dataset's own dtype. Where decodes().
  void read_cells(const ChunkGrid& grid, const Box& cells, void* out);
  /// For a call of HDF5 while this Reader lives.
  Selected select(const std::vector<Slice>& slices);

 private:
  void read_elements(const std::vector<Slice>& slices, void* out);
  void read_plain(const std::vector<Slice>& slices, char* out) const;
  void read_reversed(const std::vector<Slice>& slices, char* out) const;
  void read_library(const std::vector<Slice>& slices, at::ScalarType dtype, void* out);

  FileState& file_;
  const DatasetInfo& info_;
  const h5::Where& where_;
  std::shared_ptr<h5::Handle> dataset(size_t cache_bytes);

  size_t cache_bytes_ = 0;
  FileState::Access access_;
};

}  // namespace moonhalo::io
