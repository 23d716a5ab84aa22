// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "moonhalo/engine/comm/tcp/transport.h"

namespace moonhalo {

/// Messages over stream sockets (TCP, or a pair of one machine): `sockets[r]` is connected to rank r; that of `rank`
/// itself is unused. Takes them over and closes them at its end. A rank whose socket has closed fails what waits for it
/// (CommError) at once, except for notes (Transport::kNoteTag), which no rank has to send.
/// A socket that brings a message that no rank sends (its tag, more than kPieceBytes) counts as closed.
TransportPtr make_socket_transport(int rank, std::vector<int> sockets);

}  // namespace moonhalo
