// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace moonhalo {

/// A program says whether other ranks have the same tensor; values do not tell.
enum class Said : uint8_t {
  kNothing,
  kConstant,  ///< it is one tensor for all samples (mh.constant)
  kOwn,       ///< its rows are this rank's own (mh.local_batch)
};

/// Kept for the object, as long as it lives; what is computed from it has none.
struct TensorMeaning {
  Said said = Said::kNothing;
  bool is_parameter = false;     ///< a module trains it: every rank has a copy
  bool is_compared = false;      ///< the ranks have compared its values (front_parameters.h)
  bool feeds_own_block = false;  ///< blocks were computed from it; nothing is said of it, and ranks have others

  bool same_on_all_ranks() const { return is_parameter || said == Said::kConstant; }
};

const TensorMeaning& meaning_of(const at::Tensor& tensor);
TensorMeaning& meaning_to_change(const at::Tensor& tensor);

/// Says that modules train these plain tensors, of which every rank has a copy: net->parameters(). For blocks that are
/// computed from them (from_local). Lua's and Python's modules say it themselves. Not collective.
void note_parameters(const std::vector<at::Tensor>& parameters);

}  // namespace moonhalo
