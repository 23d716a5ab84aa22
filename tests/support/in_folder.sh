#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the given command with a TMPDIR of its own: no test meets the files of one beside it, or of a run that failed.
folder=$(mktemp -d) || exit
TMPDIR=$folder "$@"
status=$?
rm -rf "$folder"
exit $status
