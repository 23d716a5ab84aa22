// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/h5_text.h"

#include <cstring>

namespace moonhalo::io::h5 {

std::vector<std::string> read_string_values(hid_t type, hid_t space, size_t count, const Where& where,
                                            const std::function<herr_t(void* out)>& read) {
  const auto variable = checked(where, "read its type", [&] { return H5Tis_variable_str(type); });
  std::vector<std::string> values;
  if (variable > 0) {
    std::vector<char*> pointers(count, nullptr);
    checked(where, "read its text", [&] { return read(pointers.data()); });
    const Reclaim reclaim(type, space, pointers.data());
    for (const char* text : pointers) values.emplace_back(text ? text : "");
    return values;
  }
  const size_t size = H5Tget_size(type);
  const bool space_padded = H5Tget_strpad(type) == H5T_STR_SPACEPAD;
  std::vector<char> bytes(size * count);
  checked(where, "read its text", [&] { return read(bytes.data()); });
  for (size_t i = 0; i < count; ++i) {
    const char* text = bytes.data() + i * size;
    std::string value(text, strnlen(text, size));
    if (space_padded) value.erase(value.find_last_not_of(' ') + 1);
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace moonhalo::io::h5
