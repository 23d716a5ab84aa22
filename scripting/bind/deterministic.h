// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moonhalo::scripting {

/// Does what mh.use_deterministic(on) says, for the whole process: ranks that are threads share the setting.
void set_deterministic(bool on, bool warn_only);

}  // namespace moonhalo::scripting
