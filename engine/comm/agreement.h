// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moonhalo {

class Communicator;

/// ValueError on every rank of `world`, naming two that differ, unless all give the same `setting`: "OP: ranks 0 and 2
/// want different SETTINGS". Collective; in a world of one, or a fake one, nobody is there to differ.
void check_alike(Communicator& world, const char* op, const char* settings, const std::string& setting);

}  // namespace moonhalo
