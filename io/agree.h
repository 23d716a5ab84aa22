// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo::io {

/// Runs `work` on this rank and throws on every rank alike when it failed on any: the message of
/// the first failing rank, in its own type, naming the rank unless all failed in the same words. So
/// nobody waits for a rank whose disk failed. Collective over `group`; `work` itself must not
/// communicate.
void agree(Communicator& group, const std::function<void()>& work);

}  // namespace moonhalo::io
