// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moonhalo {

/// Sets what this thread calls before each verb of a group of several ranks, while it does something that ranks may do
/// in different orders. It may throw; nothing has been sent then. Null (the default): nothing is called.
using BeforeCollective = void (*)();
void set_before_collective(BeforeCollective hook);

}  // namespace moonhalo
