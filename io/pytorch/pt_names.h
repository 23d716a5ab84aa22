// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "moonhalo/io/pytorch/pickle.h"

namespace moonhalo::io {

/// A value of a pickle with its name: "state_dict.conv.weight", "optimizer_states[0].state[3].exp_avg".
struct PtName {
  std::string name;
  PickleValue value;
  std::string same_as = {};  ///< the name of the container that is this one, too
};

/// All tensors and other single values of a pickle by name, in its order. Of lists of single values, the list; of an
/// object, the object and then what its state holds. Of a pickled torch.nn.Module the parameters and buffers have the
/// names of its state_dict(), and its other attributes are left out. ValueError, which begins with `what`, where values
/// are nested deeper than 200.
std::vector<PtName> pt_names(const std::string& what, const Pickle& pickle);

/// The state of a pickled torch.nn.Module: a dict with its `_parameters`, `_buffers` and `_modules`; else null.
const PickleValue* module_state(const Pickle& pickle, const PickleValue& value);

/// A value as Python would print it, at most some 60 letters: "0.001", "'adamw'", "[1, 2, 3]", "argparse.Namespace".
std::string pickle_text(const Pickle& pickle, const PickleValue& value);

}  // namespace moonhalo::io
