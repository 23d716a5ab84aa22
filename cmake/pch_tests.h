// SPDX-License-Identifier: Apache-2.0
// The precompiled header of tests: GoogleTest's two headers took half a second of every file.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pch.h"
