// SPDX-License-Identifier: Apache-2.0
#pragma once

// All that a binding needs of this folder.
#include "moonhalo/scripting/core/bindings.h"
#include "moonhalo/scripting/core/calls.h"
#include "moonhalo/scripting/core/errors.h"
#include "moonhalo/scripting/core/modules.h"
#include "moonhalo/scripting/core/objects.h"
#include "moonhalo/scripting/core/open.h"
#include "moonhalo/scripting/core/options.h"
#include "moonhalo/scripting/core/state.h"
#include "moonhalo/scripting/core/values.h"
