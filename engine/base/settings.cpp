// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/settings.h"

#include "moonhalo/engine/base/base_context.h"

namespace moonhalo {

const Settings& settings() { return base_context->settings; }

}  // namespace moonhalo
