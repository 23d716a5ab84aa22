// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/formats/decode.h"

namespace moonhalo::io {

/// Makes the elements that were asked for of the stored ones of a selection.
struct Conversion {
  at::ScalarType stored, dtype;
  std::optional<Decoder> decoder;

  /// Reads the attributes that say how, if they are asked for. ValueError and TypeError for options that do not fit.
  static Conversion of(const Selection& selection, const ReadOptions& options, const h5::Where& where);
  /// Both contiguous, equally many elements: of the stored dtype, and of `dtype`. ValueError for an integer that
  /// does not fit. Fake tensors take the same memory, and nothing is computed.
  void apply(const at::Tensor& raw, const at::Tensor& target, const h5::Where& where) const;
};

}  // namespace moonhalo::io
