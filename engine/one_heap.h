// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moonhalo {

/// For programs whose ranks are threads, before the first of them starts: all threads of this process share one heap, so that what
/// one rank gave back serves the next one, and large blocks are reused from step to step as in a program without ranks. (glibc would
/// give every thread a heap of its own, whose large blocks come as fresh pages.) Does nothing where MALLOC_ARENA_MAX is set.
void share_one_heap();

}  // namespace moonhalo
