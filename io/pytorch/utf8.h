// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace moonhalo::io {

/// True where Python reads the bytes as UTF-8: no surrogates, no longer forms than needed.
bool is_utf8(std::string_view bytes);
/// The letters of Latin-1 as UTF-8: how protocol 2 stores bytes.
std::string latin1_to_utf8(std::string_view bytes);

}  // namespace moonhalo::io
