// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "moonhalo/engine/dispatch/rules.h"

namespace moonhalo::scripting {

/// The schema of each overload of an operator of LibTorch or of Moonhalo ("cumsum"), and below it what becomes of it on
/// blocks: the cuts that it supports, what it sends, the source of its numbers. "" if there is no such operator.
std::string describe_operator(const std::string& name);
/// "ops/reduction/scan.cpp"
std::string file_of_rule(const Rule& rule);

}  // namespace moonhalo::scripting
