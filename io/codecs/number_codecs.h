// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/io/codecs/codecs.h"

namespace moonhalo::io {

/// Bytes of one number as kDelta or kScaled made it, and as it was before.
size_t made_bytes(const Codec& codec);
size_t given_bytes(const Codec& codec);

/// True for types that undo_numbers supports: integers and floats of 4 and 8 bytes, of which kScaled makes
/// integers.
bool numbers_known(const Codec& codec);

/// Undoes kDelta or kScaled on `count` numbers, in this machine's byte order; `out` may be `in` for kDelta.
void undo_numbers(const Codec& codec, const char* in, size_t count, char* out);

}  // namespace moonhalo::io
