// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moonhalo::scripting {

/// "\n  fix   mh.fft_rfft2(x) is torch.fft.rfft2(x)": what a name of PyTorch's Python is called here, "" for other
/// names.
std::string python_name_hint(const std::string& name);

/// The same for Python's own words, which are undefined variables here: "\n  fix   the word is false in Lua".
std::string python_word_hint(const std::string& name);

}  // namespace moonhalo::scripting
