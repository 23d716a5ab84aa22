// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/base_context.h"
#include "moonhalo/engine/base/made_on_use.h"

namespace moonhalo {

class CallLog;
struct FilledFields;
struct TensorMeanings;
class ViewTrace;

/// One rank's state of tensors.
struct TensorContext {
  MadeOnUse<CallLog> calls;            ///< call_origin.h
  MadeOnUse<TensorMeanings> meanings;  ///< tensor_meaning.cpp
  /// Plain parameters in front of blocks (front_parameters.cpp).
  struct {
    bool any_in_front = false, any_own_data = false;
    std::vector<std::pair<at::Tensor, at::Tensor>> substitutes;  // copies and originals
  } front_parameters;
  std::shared_ptr<FilledFields> filled_fields;  ///< host_halos.cpp; null where no ghosts are filled
  ViewTrace* view_trace = nullptr;              ///< view_tracking.h
};
inline const RankLocal<TensorContext> tensor_context;

}  // namespace moonhalo
