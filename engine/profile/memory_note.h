// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace moonhalo {

/// "812 B", "1.5 kB", ...
std::string bytes_text(double bytes);
std::string bytes_text(int64_t bytes);

/// "\n  have  tensors of this rank: 1.2 GB now, 1.4 GB at the peak", for errors of memory; while a recorder runs also
/// the modules that hold most. "" where no memory is counted.
std::string memory_note();

}  // namespace moonhalo
