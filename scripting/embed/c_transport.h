// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/comm/tcp/transport.h"
#include "moonhalo/scripting/embed/moonhalo_c.h"

namespace moonhalo::scripting {

/// The caller's functions as a Transport. HostError (MH_USAGE) when one is missing or the numbers make no sense.
TransportPtr make_c_transport(const mh_transport& given);

}  // namespace moonhalo::scripting
