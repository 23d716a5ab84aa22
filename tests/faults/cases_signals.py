"""Signals: to one rank, to all, to the launcher, while a file is being written."""

from cases import Case

# field.h5 is written, but not closed, when the signal comes.
SAVING = """
local file = s.open_h5(2)
s.ready()
while true do s.collective() end
"""
# Ends by itself, some time after the fault.
GOES_ON = """
local file = s.open_h5(2)
s.ready()
for i = 1, 2000 do s.collective() end
file:close()
"""
# Every rank makes and writes chunks of a file that grows, or reads batches ahead, when the signal comes.
WRITING = """
local file = s.mh.h5.open("field.h5", "w")
file:append("packed", s.noise(510), {compression = 4, chunks = {17, 128}})
s.ready()
while true do file:append("packed", s.noise(510)) end
"""
LOADING = "local loader = s.loader() s.ready() s.load(loader)"


def signals(signal, word):
    return [
        Case(f"{word}_rank", SAVING, f"{signal} 1", "mpi", watch="field.h5"),
        Case(f"{word}_all", SAVING, f"{signal} all", watch="field.h5", any_rank=True),
        Case(f"{word}_mpirun", SAVING, f"{signal} mpirun", "mpi", watch="field.h5"),
    ]


CASES = [
    *signals("KILL", "kill"),
    *signals("TERM", "terminate"),
    *signals("INT", "interrupt"),
    Case("interrupt_while_writing", WRITING, "wait 0.3, INT all", watch="field.h5", any_rank=True),
    Case("interrupt_while_writing_one", WRITING, "wait 0.3, INT 1", "mpi", watch="field.h5"),
    Case("interrupt_while_loading", LOADING, "wait 0.3, INT all", watch="field.h5", any_rank=True),
    Case("interrupt_while_loading_one", LOADING, "wait 0.3, INT 1", "mpi", watch="field.h5"),
    Case("segfault_rank", SAVING, "SEGV 1", "mpi", watch="field.h5"),
    Case("abort_rank", SAVING, "ABRT 1", "mpi", watch="field.h5"),
    Case("hangup_all", SAVING, "HUP all", watch="field.h5", any_rank=True),
    Case("suspend_rank", SAVING, "STOP 1", "mpi", limit=3, watch="field.h5", any_rank=True),
    Case("suspend_rank_and_resume", GOES_ON, "STOP 1, wait 1, CONT 1", "mpi", limit=10, watch="field.h5"),
    Case("suspend_all_and_resume", GOES_ON, "STOP all, wait 5, CONT all", limit=3, watch="field.h5"),
]
