// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

namespace moonhalo::testing {

/// Every input has this name, which an error about it must say.
inline constexpr const char* kInputName = "damaged-input";

/// One input: the bytes of its files, by path below the folder that it is put into.
struct InputFiles {
  std::map<std::string, std::string> files;
  bool checked = false;  ///< all of it has checksums: what can be read must be what was written
};

/// A kind of file that users are given by others.
struct InputKind {
  const char* name;
  /// Small valid inputs, made in `folder`.
  std::vector<InputFiles> (*valid)(const std::string& folder);
  /// The words that edits of text put in; none: the files are bytes.
  std::vector<std::string> words;
  /// Uses the input that is in `folder`, as a program would. "read", "refused" (with an error that names it) or
  /// what is wrong. `original` is the valid one that it was made of.
  std::string (*judge)(const std::string& folder, const InputFiles& original);
  size_t once;  ///< inputs of a run with --once: some ten seconds
};

const InputKind& files_kind();        ///< HDF5 of several layouts, NetCDF-3, Zarr, safetensors
const InputKind& models_kind();       ///< files of PyTorch
const InputKind& plans_kind();        ///< plans as JSON
const InputKind& configs_kind();      ///< settings in Lua and JSON
const InputKind& checkpoints_kind();  ///< folders that mh.checkpoint wrote

std::string read_bytes(const std::string& path);
void write_bytes(const std::string& path, const std::string& bytes);
/// All files below `folder`.
InputFiles read_input(const std::string& folder);
/// Replaces what is in `folder`.
void write_input(const std::string& folder, const InputFiles& input);

/// "refused", or that the error does not name the input.
std::string judge_error(const std::string& message);

}  // namespace moonhalo::testing
