# SPDX-License-Identifier: Apache-2.0
"""The interpreter ends while ranks of a daemon thread wait for each other, and one wait ends meanwhile: so does the
program, with status 0.  usage: MOONHALO_TIMEOUT_S=1 interpreter_ends.py FOLDER_OF_THE_MODULE"""

import linecache
import os
import sys
import threading
import time

sys.path.insert(0, sys.argv[1])
import moonhalo as mh
import torch

idents, over = [], threading.Event()


class SlowToEnd:
    """A standard output. The interpreter flushes it when no thread may have it any more."""

    def write(self, text):
        pass

    def flush(self, sleep=time.sleep, ends=sys.is_finalizing, say=os.write):
        if ends():
            sleep(2)
            say(1, b"the interpreter ends")


def rank(world):
    try:
        x = mh.distribute_tensor(torch.ones(4, 3), mh.init_device_mesh(world, "cpu", [2]), [mh.Shard(0)])
        if world.rank == 0:
            idents.append(threading.get_ident())
            x[3]  # of rank 1, which does not come: the time limit ends the wait
        else:
            over.wait()
    finally:
        over.set()


def begin():
    over.clear()
    idents.clear()
    ranks = threading.Thread(target=mh.run_ranks, args=(2, rank), daemon=True)
    ranks.start()
    return ranks


def rank_0_waits():
    """While this thread runs, a rank at that line is in the wait: it holds the interpreter otherwise."""
    frame = sys._current_frames().get(idents[0]) if idents else None
    return frame is not None and "x[3]  #" in linecache.getline(__file__, frame.f_lineno)


ranks = begin()
while not rank_0_waits():
    if not ranks.is_alive():  # the machine was so busy that another wait met the limit
        ranks = begin()
    time.sleep(0.01)
sys.stdout = SlowToEnd()
