// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/formats/file_state.h"

namespace moonhalo::io {

/// Writes a tensor as a new dataset, or (`grows`) behind the rows of one that can grow, which is made where it is not
/// there. One rank, the first of the mesh, keeps the file open and makes the dataset; all ranks write its bytes:
///
///     runs      contiguous data: every rank pwrites the rows that share_out gives it
///     chunks    each chunk goes to one rank (IoPlan), which encodes it; the owner registers their sizes in HDF5, which
///               gives addresses; every rank pwrites its chunks. In rounds, so that little memory is needed.
///     one rank  filters that are not known here, types that HDF5 converts, network file systems whose clients do not
///               see each other's writes (NFS, or MOONHALO_ONE_WRITER=1): pieces go to the owner, and through H5Dwrite
///
/// A plain tensor is that of a mesh of one rank: of a file that several ranks write the owner's, from its own equal
/// copy. Replicated blocks are written once; a Partial tensor is resolved. Collective over the mesh of a ShardTensor,
/// for a plain tensor over the ranks that write the file; a failing rank's error is thrown everywhere.
void write_together(FileState& file, const std::string& name, const at::Tensor& tensor, const WriteOptions& options,
                    bool grows, const h5::Where& where);

/// FileState::change() by the owner of the file alone. Collective over the ranks that write it; all throw its error.
void change_together(FileState& file, const h5::Where& where, const std::function<void()>& work);

}  // namespace moonhalo::io
