#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks the moonhalo program from outside, sees what it does, and compares that with expected.txt.

    faults.py PROGRAM [FILTER] [--mpiexec MPIEXEC] [--part K/N] [--update] [--keep]
    faults.py PROGRAM --kills N [--seed S]

Status, the first line said and what is left on disk are compared. All processes must be gone before the time limit of
their waits, 600 s, ends them. A case that waits for a limit of its own is tried with one five times as long where a
busy machine may have needed it
for something else."""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cases
import disk
import kills
import running

HERE = pathlib.Path(__file__).parent
EXPECTED = HERE / "expected.txt"
WAITS_S = 600  # MOONHALO_TIMEOUT_S of cases that must not reach it
GONE_WITHIN_S = 300  # for hangs
JOBS = 2  # most of a case is starting and waiting
FIRST_LINE = 'local s = dofile("../support.lua")\n'


class Faults:
    def __init__(self, program, mpiexec, base):
        self.program, self.mpiexec, self.base = str(pathlib.Path(program).resolve()), mpiexec, base
        shutil.copy(HERE / "support.lua", base)
        self.old = base / "old"
        self.old.mkdir()
        self.moonhalo(disk.WRITE_OLD, self.old, ["--log", "log.jsonl"])
        small = base / "small"
        small.mkdir()
        self.mounts = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(small)], capture_output=True).returncode == 0
        if self.mounts:
            subprocess.run(["umount", str(small)], check=True)

    def moonhalo(self, script, work, options):
        """Output of an undisturbed run in `work`."""
        path = work.parent / "undisturbed.lua"
        path.write_text(script)
        done = subprocess.run(
            [self.program, "run", str(path), *options],
            cwd=work,
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, **running.ENVIRONMENT},
        )
        if done.returncode:
            raise SystemExit(f"faults: a run that nobody disturbs fails with status {done.returncode}\n{done.stderr}")
        return done.stdout

    def why_not(self, case):
        """Why this machine cannot show a case."""
        if (case.user or case.small_disk) and os.geteuid() != 0:
            return "needs root"
        if case.small_disk and not self.mounts:
            return "mount refuses a tmpfs"
        if (
            case.user
            and subprocess.run(
                [self.program, "--help"], user=case.user, extra_groups=[], capture_output=True
            ).returncode
        ):
            return f"user {case.user} cannot run {self.program}"
        return ""

    def command(self, how, ranks, arguments):
        """How `moonhalo run` is started on ranks that are threads or processes."""
        if how == "mpi":
            return [self.mpiexec, "-n", str(ranks), self.program, "run", *arguments]
        return [self.program, "run", *(["--ranks", str(ranks)] if ranks > 1 else []), *arguments]

    def result(self, case, how, limit):
        """(block to compare, seconds until the end, what is wrong beside the block)"""
        folder = self.base / f"{case.name}.{how}"
        work = folder / "work"
        work.mkdir(parents=True)
        if case.small_disk:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(work)], check=True)
        try:
            return self.result_in(case, how, folder, work, limit)
        finally:
            if case.small_disk:
                subprocess.run(["umount", "-l", str(work)], check=True)

    def result_in(self, case, how, folder, work, limit):
        shutil.copy(HERE / "support.lua", folder)
        (folder / "script.lua").write_text(FIRST_LINE + case.script.strip() + "\n")
        disk.put_old(self.old, work, case.watch.split())
        if case.before:
            case.before(work)
        before = disk.contents(work, sorted(path.name for path in work.iterdir()))
        if case.user:
            subprocess.run(["chown", "-R", case.user, str(folder)], check=True)
        arguments = (["../script.lua"] if case.script else []) + list(case.options)
        run = running.Run(
            self.command(how, case.ranks, arguments),
            folder,
            case.ranks,
            {"MOONHALO_TIMEOUT_S": str(limit or WAITS_S)},
            case.user or None,
            case.stdout or None,
        )
        gone_within, wrong = limit + GONE_WITHIN_S, ""
        try:
            if not case.starts:
                gone_within += running.START_LIMIT_S
            elif not run.wait_ready(case.ranks if case.acts else 1):
                wrong = "ended before the fault"
            else:
                for action in filter(None, case.acts.split(", ")):
                    run.act(action)
                if "s.wait()" in case.script:
                    run.go()
            seconds = run.end(gone_within)
        finally:
            run.kill()
        if seconds is None:
            wrong = f"still there {gone_within:g} s after the fault"
        said = run.said(case.any_rank).replace(f"after {limit:g} s", f"after {case.limit:g} s")
        left = disk.state(self.moonhalo, work, before, case.signals() or how == "mpi", not case.small_disk)
        block = f"{case.name}, {how}\n  status  {run.status()}\n  says    {said}\n  disk    {left}\n"
        return block, seconds, wrong

    def judged(self, case, how, wanted, update):
        """(block, line for the table, whether it failed)"""
        for longer in (1, 5) if case.limit else (1,):
            block, seconds, wrong = self.result(case, how, case.limit * longer)
            good = not wrong and block == wanted
            time = f"{seconds:5.1f} s" if seconds is not None else "   late"
            if good or case.pending or update or longer > 1 or not case.limit:
                break
            print(f"longer  {time}  {case.name}, {how}: {wrong or 'not as expected'}", flush=True)
            shutil.rmtree(self.base / f"{case.name}.{how}")
        word = "ok" if good else "PENDING" if case.pending else "seen" if update and not wrong else "FAILED"
        text = f"{word:7} {time}  {case.name}, {how}"
        if good and not case.pending:
            status, said = re.findall(r"^  (?:status|says) +(.*)", block, re.M)
            text = f"{text:56} {status:8} {said[:110]}"
        if case.pending:
            text += f": {case.pending}" + (" -- but it passes" if good else "")
        if not good:
            text += f"\n{wrong and '  ' + wrong + chr(10)}--- found\n{block}--- expected\n{wanted or ''}---"
        return block, text, word == "FAILED"


def read_expected():
    blocks = EXPECTED.read_text().split("\n\n") if EXPECTED.exists() else []
    return {block.split("\n", 1)[0]: block.rstrip("\n") + "\n" for block in blocks if block.strip()}


def write_expected(expected):
    """In the order of the cases; blocks of cases that are no more go."""
    titles = [f"{case.name}, {how}" for case, how in cases.all_cases()]
    EXPECTED.write_text("\n".join(expected[title] for title in titles if title in expected))


def chosen(given):
    part, parts = (int(number) for number in given.part.split("/"))
    return [
        (case, how)
        for i, (case, how) in enumerate(cases.all_cases())
        if re.search(given.filter, f"{case.name}, {how}") and (how != "mpi" or given.mpiexec) and i % parts == part - 1
    ]


def run_cases(given, base):
    expected, failed, pending = read_expected(), 0, 0
    faults = Faults(given.program, given.mpiexec, base)
    selection = chosen(given)

    def judge(one):
        case, how = one
        title = f"{case.name}, {how}"
        reason = faults.why_not(case)
        return (
            (None, f"skipped          {title}: {reason}", False)
            if reason
            else faults.judged(case, how, expected.get(title), given.update)
        )

    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for (case, how), (block, line, bad) in zip(selection, pool.map(judge, selection)):
            title = f"{case.name}, {how}"
            print(line, flush=True)
            failed, pending = failed + bad, pending + bool(case.pending)
            if given.update and block and not bad and not (case.pending and title in expected):
                expected[title] = block
                write_expected(expected)
    print(f"{len(selection)} cases, {failed} failed, {pending} pending")
    return 1 if failed or not selection else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("filter", nargs="?", default="")
    parser.add_argument("--mpiexec", default=shutil.which("mpirun") or "")
    parser.add_argument("--part", default="1/1", help="the K-th of N parts of the cases")
    parser.add_argument(
        "--update", action="store_true", help="write what is seen into expected.txt; read it before you keep it"
    )
    parser.add_argument("--kills", type=int, default=0, help="instead: so many kills of a loop that saves")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of --kills (default: the time)")
    parser.add_argument("--keep", action="store_true", help="leave the folders of the runs")
    given = parser.parse_intermixed_args()
    base = pathlib.Path(tempfile.mkdtemp(prefix="mhf-"))
    base.chmod(0o755)
    try:
        if given.kills:
            return kills.soak(Faults(given.program, given.mpiexec, base), base, given.kills, given.seed)
        return run_cases(given, base)
    finally:
        if given.keep:
            print(f"the runs are in {base}")
        else:
            shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
