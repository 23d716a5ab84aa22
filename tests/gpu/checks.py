# SPDX-License-Identifier: Apache-2.0
"""Checks of first.py: processes with limits, the log of what came of them, and judges of what they printed."""

import concurrent.futures
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
FAILED = ("failed", "crashed", "timed out")


class Check:
    """One process: a name, a command, seconds that it may take, and what its output has to hold (None: nothing more
    than status 0)."""

    def __init__(self, name, command, limit, judge=None, environment=None):
        self.name, self.command, self.limit = name, [str(word) for word in command], limit
        self.judge, self.environment = judge, environment or {}


# ---- Running ---------------------------------------------------------------------------------------------------------


class Log:
    """Lines that are on the disk before the next check begins; a disk that is full keeps nothing from running."""

    def __init__(self, folder):
        self.folder, self.lock, self.records, self.unwritten = folder, threading.Lock(), [], 0
        for name in ("first.log", "first.jsonl", "outputs.log"):
            self.append(name, "", "w")

    def append(self, name, text, mode="a"):
        try:
            with open(self.folder / name, mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            self.unwritten += 1
            if self.unwritten == 1:
                print(
                    f"first: {self.folder / name} cannot be written ({error}); only what is printed here is left",
                    flush=True,
                )

    def say(self, line):
        with self.lock:
            print(line, flush=True)
            self.append("first.log", line + "\n")

    def record(self, stage, check, status, seconds, detail, output):
        line = f"{status:9} {stage:12} {check:44} {seconds:6.1f} s  {detail}".rstrip()
        record = {"stage": stage, "check": check, "status": status, "seconds": round(seconds, 2), "detail": detail}
        with self.lock:
            self.records.append(record)
            if status != "passed" or not check.startswith(("test_engine ", "test_ops ", "lua ")):
                print(line[:400], flush=True)
            self.append("first.log", line + "\n")
            self.append("first.jsonl", json.dumps(record) + "\n")
            kept = output if len(output) < 60000 else output[:30000] + "\n[...]\n" + output[-30000:]
            self.append("outputs.log", f"==== {stage}: {check}: {status} after {seconds:.1f} s\n{kept}\n")


def run_process(command, limit, environment):
    """Status text, seconds, output. The whole process group ends at the limit."""
    begin = time.monotonic()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **environment},
            cwd=HERE,
        )
    except OSError as error:
        return "failed", 0.0, str(error)
    try:
        output, _ = process.communicate(timeout=limit)
        late = False
    except subprocess.TimeoutExpired:
        late = True
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    seconds, text = time.monotonic() - begin, output.decode("utf-8", "replace")
    if late:
        return "timed out", seconds, text
    if process.returncode < 0 or process.returncode >= 128:
        return "crashed", seconds, text + f"\n[status {process.returncode}]"
    return ("passed" if process.returncode == 0 else "failed"), seconds, text


def last_line(output):
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def first_error(output):
    lines = [line.strip() for line in output.splitlines() if line.strip() and not re.match(r"\s*(have|fix)  ", line)]
    chosen = [line for line in lines if re.search(r"error|Error|FAILED|failed", line)] or lines[-1:]
    return chosen[0] if chosen else ""


def run_check(stage, check, log, environment, remaining):
    limit = min(check.limit, remaining())
    if limit <= 1:
        log.record(stage, check.name, "timed out", 0, "its stage has no time left", "")
        return
    with tempfile.TemporaryDirectory() as folder:
        status, seconds, output = run_process(
            check.command, limit, {**environment, "TMPDIR": folder, **check.environment}
        )
    detail = ""
    if check.judge is not None and status in ("passed", "failed"):
        status, detail = check.judge(status, output)
    elif status == "timed out":
        running = re.findall(r"^\[ RUN      \] (.*)$", output, re.M)
        detail = f"limit {limit:.0f} s; last: {running[-1] if running else last_line(output)}"
    elif status == "crashed":
        running = re.findall(r"^\[ RUN      \] (.*)$", output, re.M)
        detail = f"{last_line(output)} in {running[-1] if running else first_error(output)}"
    elif status == "failed":
        detail = first_error(output)
    log.record(stage, check.name, status, seconds, detail, output)


def run_stage(stage, checks, limit, jobs, log, environment):
    end = time.monotonic() + limit
    remaining = lambda: end - time.monotonic()  # noqa: E731
    with concurrent.futures.ThreadPoolExecutor(max_workers=jobs) as pool:
        done = [pool.submit(run_check, stage, check, log, environment, remaining) for check in checks]
        for future in done:
            future.result()


# ---- Judges ----------------------------------------------------------------------------------------------------------


def judge_googletest(status, output):
    ran = re.search(r"^\[==========\] (\d+) tests? from .* ran", output, re.M)
    passed = re.search(r"^\[  PASSED  \] (\d+) test", output, re.M)
    skipped = re.findall(r"^\[  SKIPPED \] (\S+) \(", output, re.M)
    failures = sorted(set(re.findall(r"^\[  FAILED  \] ([^\s,(]+)(?:, where| \()", output, re.M)))
    if ran is None:
        return "failed", first_error(output)
    count, good = int(ran.group(1)), int(passed.group(1)) if passed else 0
    if failures or status == "failed":
        first = re.search(r": Failure\n((?:.*\n){1,6})", output)
        text = re.sub(r"\s+", " ", first.group(1)) if first else first_error(output)
        return "failed", f"{len(failures)} of {count}: {' '.join(failures)[:160]}: {text[:220]}"
    if count == 0 or len(skipped) == count:
        return "failed", f"all {count} tests were skipped: {last_skip(output)}"
    return "passed", f"{good} tests" + (f", {len(skipped)} skipped" if skipped else "")


def last_skip(output):
    found = re.findall(r"Skipped\n(.*)", output)
    return found[-1] if found else ""


def judge_words(*words):
    def judge(status, output):
        missing = [word for word in words if word not in output]
        if status == "passed" and missing:
            return "failed", f"its output lacks {missing[0]!r}: {last_line(output)}"
        return status, first_error(output) if status == "failed" else ""

    return judge


def judge_losses(log_file, reference, tolerance):
    """The losses of a run against those of the CPU with one rank."""

    def losses(path):
        found = []
        for line in Path(path).read_text().splitlines():
            entry = json.loads(line)
            if "loss" in entry:
                found.append(entry["loss"])
        return found

    def judge(status, output):
        if status != "passed":
            return status, first_error(output)
        try:
            mine, theirs = losses(log_file), losses(reference)
        except OSError as error:
            return "failed", str(error)
        if not mine or len(mine) != len(theirs):
            return "failed", f"{len(mine)} losses, the CPU has {len(theirs)}"
        worst = max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(mine, theirs))
        detail = (
            f"{len(mine)} losses, last {mine[-1]:.6g} (CPU {theirs[-1]:.6g}), largest relative difference {worst:.1e},"
            f" allowed {tolerance:.0e}"
        )
        return ("passed" if worst <= tolerance else "failed"), detail

    return judge
