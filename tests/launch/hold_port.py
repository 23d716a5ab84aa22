#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a command with HELD_PORT, a TCP port that no other run of a test on this machine has while the command or a
process that it starts lives: hold_port.py COMMAND...

A port is held by a socket that is bound to the one 10000 above it, so that the command can bind the port itself. Both
lie below the ports that Linux gives to those who ask for any."""

import os
import random
import socket
import sys

FIRST, LAST, ABOVE = 20000, 22700, 10000


def hold(port):
    """The socket that holds `port`, None if another has it."""
    holder = socket.socket()
    try:
        holder.bind(("127.0.0.1", port + ABOVE))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("0.0.0.0", port))
    except OSError:
        holder.close()
        return None
    holder.set_inheritable(True)
    return holder


ports = list(range(FIRST, LAST))
random.shuffle(ports)
for port in ports:
    holder = hold(port)
    if holder is not None:
        os.execvpe(sys.argv[1], sys.argv[1:], {**os.environ, "HELD_PORT": str(port)})
sys.exit(f"hold_port.py: each port from {FIRST} to {LAST - 1} is in use")
