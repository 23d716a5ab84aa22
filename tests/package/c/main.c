/* SPDX-License-Identifier: Apache-2.0 */
/* A project in C alone: neither a C++ compiler nor LibTorch's headers are asked for (X15). */
#include <moonhalo/moonhalo_c.h>
#include <stdio.h>

int main(void) {
  mh_session* session = NULL;
  mh_options options = MH_OPTIONS;
  options.script = "no_such_file.lua";
  if (mh_version() != MH_VERSION || mh_open(&options, &session) != MH_USAGE || session != NULL) return 1;
  puts(mh_error());
  return 0;
}
