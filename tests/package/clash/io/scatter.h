// SPDX-License-Identifier: Apache-2.0
#pragma once

inline int host_scatter() { return 11; }
