// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/fields/reader.h"
#include "moonhalo/io/formats/file_state.h"

namespace moonhalo::io {

/// Makes a dataset, with the groups in its name, in a file open for writing and writes its
/// attributes. `grows`: in chunks, with a first dim that can grow. ValueError: it exists and may not be replaced,
/// chunks or dims that do not fit the shape.
h5::Handle create_dataset_in(const FileState::Access& file, const std::string& name, at::IntArrayRef shape,
                             at::ScalarType dtype, const WriteOptions& options, const h5::Where& where,
                             bool grows = false);
/// Makes space for `rows` more behind those of a dataset, which is made where it is not there. Returns the dataset
/// and its first new row. ValueError where it cannot grow or holds rows of another shape, TypeError for another
/// dtype.
std::pair<h5::Handle, int64_t> grow_dataset_in(const FileState::Access& file, const std::string& name,
                                               at::IntArrayRef rows, at::ScalarType dtype, const WriteOptions& options,
                                               const h5::Where& where);
/// The elements as they are in a file: on the CPU, contiguous, everything that LibTorch has put off carried out.
at::Tensor plain_data(const at::Tensor& tensor);
/// Writes a plain tensor with its first element at `offsets`, converted to the dataset's type.
void write_part(hid_t dataset, at::IntArrayRef offsets, const at::Tensor& block, const h5::Where& where);
/// A file that a link leads to would be changed in place, without the copy that a failure leaves untouched.
void refuse_elsewhere(hid_t file, hid_t object, const h5::Where& where);
/// "group/x" for "/group//x/".
std::string normalized(const std::string& path);

}  // namespace moonhalo::io
