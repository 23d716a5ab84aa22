# SPDX-License-Identifier: Apache-2.0
"""The interpreter ends while ranks of a daemon thread run Python code: so does the program, with status 0.
usage: ends_in_python.py FOLDER_OF_THE_MODULE"""

import sys
import threading

sys.path.insert(0, sys.argv[1])
import moonhalo as mh

begun = threading.Semaphore(0)


def rank(world):
    begun.release()
    while True:
        sum(range(100))


threading.Thread(target=mh.run_ranks, args=(2, rank), daemon=True).start()
begun.acquire()
begun.acquire()
print("the interpreter ends", flush=True)
