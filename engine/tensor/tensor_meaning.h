// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace moonhalo {

/// The program's declaration of a plain tensor's values on other ranks, which values alone do not tell.
enum class Said : uint8_t {
  kNothing,
  kConstant,  ///< the same tensor for all samples (mh.constant)
  kOwn,       ///< rows of this rank alone (mh.local_batch)
};

/// The declared meaning of a plain tensor. It belongs to the tensor object; results computed from it have none.
struct TensorMeaning {
  Said said = Said::kNothing;    ///< what the program declared
  bool is_parameter = false;     ///< trained by a module; every rank has a copy
  bool is_compared = false;      ///< its values have been compared between ranks (front_parameters.h)
  bool feeds_own_block = false;  ///< blocks were computed from it; undeclared, and it differs between ranks

  /// True if the declaration says that all ranks have the same values.
  bool same_on_all_ranks() const { return is_parameter || said == Said::kConstant; }
};

/// Returns the meaning of a plain tensor of any shape, to read or to change. Not collective.
const TensorMeaning& meaning_of(const at::Tensor& tensor);
TensorMeaning& meaning_to_change(const at::Tensor& tensor);

/// Declares that modules train these plain tensors, and that every rank has a copy: net->parameters(). Needed for
/// blocks that are computed from them (from_local). Modules of Lua and Python call it themselves. Not collective.
void note_parameters(const std::vector<at::Tensor>& parameters);

}  // namespace moonhalo
