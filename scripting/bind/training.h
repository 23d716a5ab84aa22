// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace moonhalo::scripting {

/// In a dry run that computes nothing the values of a module's parameter that is trained count no more, however small
/// it is: what is made of it, such as a loss, is then not computed on any rank. Call it where a parameter may have
/// begun to require a gradient; other tensors stay as they are. Not collective.
void forget_trained_values(const at::Tensor& tensor);

}  // namespace moonhalo::scripting
