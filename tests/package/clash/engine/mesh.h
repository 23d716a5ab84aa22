// SPDX-License-Identifier: Apache-2.0
#pragma once

struct HostMesh {
  int cells = 7;
};
