// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moonhalo::testing {

/// Reads the attributes of all objects of a file with libhdf5 alone, going on after errors, which HDF5's tools do
/// not. Gives nothing back: the question is whether it ends. libhdf5 1.10 does not, for one, in a global heap (of
/// strings and references) with an object of index 0 and size 0.
void read_attributes_plainly(const std::string& path);

}  // namespace moonhalo::testing
