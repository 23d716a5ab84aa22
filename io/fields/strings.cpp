// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/fields/strings.h"

#include <c10/util/Exception.h>

#include "moonhalo/io/base/h5_text.h"
#include "moonhalo/io/base/memory.h"
#include "moonhalo/io/fields/reader.h"
#include "moonhalo/io/formats/file_state.h"

namespace moonhalo::io {
namespace {

/// Strings of one length, filled up with zeros.
std::vector<std::string> stored_strings(const Selection& source, Reader& reader, const h5::Where& where) {
  const size_t length = source.dataset().info().element_size;
  const auto count = static_cast<size_t>(c10::multiply_integers(source.shape()));
  check_fits_memory(where, source.shape(), static_cast<double>(length));
  std::string bytes(count * length, '\0');
  reader.read_stored(source.slices(), bytes.data());
  std::vector<std::string> texts;
  for (size_t i = 0; i < count; ++i) {
    std::string text = bytes.substr(i * length, length);
    text.resize(text.find_last_not_of('\0') + 1);
    texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace

std::vector<std::string> read_strings(const Selection& source) {
  const Dataset& dataset = source.dataset();
  const h5::Where where{"strings", dataset.path(), "dataset \"" + dataset.name() + "\""};
  TORCH_CHECK_TYPE(dataset.type_name() == "string", where.to_string(), ": it holds no text\n  have  ",
                   dataset.type_name(), "\n  fix   read() gives numbers as a tensor");
  Reader reader(*dataset.file(), dataset.info(), source.slices(), where);
  if (dataset.file()->has_catalog()) return stored_strings(source, reader, where);
  const Selected selected = reader.select(source.slices());
  const size_t count = static_cast<size_t>(c10::multiply_integers(source.shape()));
  if (count == 0) return {};
  const h5::Handle type = h5::type_of(selected.dataset->get(), where);
  check_fits_memory(where, source.shape(), static_cast<double>(H5Tget_size(type.get())));
  return h5::read_string_values(type.get(), selected.memory.get(), count, where, [&](void* out) {
    return H5Dread(selected.dataset->get(), type.get(), selected.memory.get(), selected.file.get(), H5P_DEFAULT, out);
  });
}

}  // namespace moonhalo::io
