// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moonhalo::scripting {

/// True for a zip or tar archive (files of PyTorch), and for a safetensors file.
bool is_model_file(const std::string& path);
/// Prints names, dtypes and shapes of the tensors in it, and its other values; of another zip archive its entries.
/// Throws as the readers do.
void print_model_file(const std::string& path);

}  // namespace moonhalo::scripting
