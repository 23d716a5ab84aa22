#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the given command with a TMPDIR of its own: no test meets the files of one beside it, or of a run that failed.
folder=$(mktemp -d "${TMPDIR:-/tmp}/moonhalo.XXXXXXXX") || exit
chmod 755 "$folder"  # some tests run the program as another user
# Signals that whoever began the tests ignores, as shells do for what they start in the background, would be ignored by all of them.
default_signals="env --default-signal"
$default_signals true 2>/dev/null || default_signals=
TMPDIR=$folder $default_signals "$@"
status=$?
rm -rf "$folder"
# Ends by the signal that ended the command, so that CTest tells a crash from a test that failed.
if [ $status -gt 128 ] && [ $status -lt 160 ]; then
  ulimit -c 0
  kill -$((status - 128)) $$
fi
exit $status
