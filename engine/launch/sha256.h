// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moonhalo {

using Digest = std::array<uint8_t, 32>;

/// FIPS 180-4.
Digest sha256(std::string_view bytes);
/// HMAC-SHA256 of RFC 2104.
Digest hmac_sha256(std::string_view key, std::string_view bytes);
/// Takes as long wherever they differ.
bool same_digest(const Digest& a, const Digest& b);
/// 64 small hexadecimal digits.
std::string hex(const Digest& digest);
/// Returns 32 random bytes of the system, which cannot be guessed.
Digest random_digest();

}  // namespace moonhalo
