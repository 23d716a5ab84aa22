// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/strings.h"

#include <c10/util/Exception.h>

#include "moonhalo/io/file_state.h"
#include "moonhalo/io/h5_text.h"
#include "moonhalo/io/memory.h"
#include "moonhalo/io/reader.h"

namespace moonhalo::io {

std::vector<std::string> read_strings(const Selection& source) {
  const Dataset& dataset = source.dataset();
  const h5::Where where{"strings", dataset.path(), "dataset \"" + dataset.name() + "\""};
  TORCH_CHECK_TYPE(dataset.type_name() == "string", where.to_string(), ": it holds no text\n  have  ", dataset.type_name(),
                   "\n  fix   read() gives numbers as a tensor");
  Reader reader(*dataset.file(), dataset.info(), source.slices(), where);
  const Selected selected = reader.select(source.slices());
  const size_t count = static_cast<size_t>(c10::multiply_integers(source.shape()));
  if (count == 0) return {};
  const h5::Handle type = h5::type_of(selected.dataset->get(), where);
  check_room(where, source.shape(), static_cast<double>(H5Tget_size(type.get())));
  return h5::read_texts(type.get(), selected.memory.get(), count, where, [&](void* out) {
    return H5Dread(selected.dataset->get(), type.get(), selected.memory.get(), selected.file.get(), H5P_DEFAULT, out);
  });
}

}  // namespace moonhalo::io
