"""What is broken, and how: one line or a few per case."""

import dataclasses
import typing


@dataclasses.dataclass(frozen=True)
class Case:
    """`script` is Lua after `local s = dofile("../support.lua")`; it calls s.ready() right before the fault, or
    s.wait() where the fault is `acts`, which then come before the script goes on. Signals of `acts` meet a script that
    goes on by itself."""

    name: str
    script: str
    acts: str = ""  # "KILL 1, wait 2": see Run.act
    how: str = "threads mpi"
    ranks: int = 3
    limit: float = 0  # MOONHALO_TIMEOUT_S of a case that must reach it (0: none may)
    options: tuple = ()  # of moonhalo run
    watch: str = ""  # final names, there in their old version when the run starts
    before: typing.Callable = None  # before(work): breaks files
    user: str = ""  # runs as this user where we are root
    stdout: str = ""
    starts: bool = True  # False: ends before the script's first line
    any_rank: bool = False  # whichever rank is the first to say it
    small_disk: bool = False  # a file system of 2 MB
    pending: str = ""  # why this tree does not meet expected.txt yet

    def signals(self):
        return any(
            act.split()[0] in ("KILL", "TERM", "INT", "SEGV", "ABRT", "HUP", "STOP")
            for act in self.acts.split(", ")
            if act
        )


def all_cases():
    import cases_end
    import cases_files
    import cases_signals

    cases = cases_signals.CASES + cases_end.CASES + cases_files.CASES
    names = [case.name for case in cases]
    assert len(names) == len(set(names)), "two cases of one name"
    return [(case, how) for case in cases for how in case.how.split()]
