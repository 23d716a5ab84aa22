// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/shares/io_plan.h"

namespace moonhalo::io {

/// This rank's block of a selection with its halo, as a plain CPU tensor; `spec` is of the selection's shape. Ranks
/// that need parts of the same compressed chunks read and decode each chunk once and give the others theirs
/// (IoPlan); otherwise each reads its own as read_block does. Collective over the mesh; every rank opens the file
/// itself and passes the same. Throws on every rank: ValueError where they differ, and the first failing rank's
/// error.
at::Tensor read_together(const Selection& source, const SpecPtr& spec, const ReadOptions& options = {},
                         const BlockHalo& halo = {});

}  // namespace moonhalo::io
