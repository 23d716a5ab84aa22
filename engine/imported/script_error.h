// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "moonhalo/engine/dispatch/kept_error.h"

namespace moonhalo::jit {

/// True for the text that LibTorch's interpreter of TorchScript gives every error.
bool is_script_error(const std::string& text);
/// Throws the error that an operator had (`kept`), or else one with the message in `text`, with the line of the Python
/// model in `text`. Errors of LibTorch and CommError keep their type; others are rethrown unchanged.
[[noreturn]] void throw_with_model_line(const KeptError& kept, const std::string& text);

/// To be called where an exception is handled: throws it again with `lines` at its end. Errors of LibTorch and
/// CommError keep their type; others are rethrown unchanged.
[[noreturn]] void rethrow_with(const std::string& lines);

}  // namespace moonhalo::jit
