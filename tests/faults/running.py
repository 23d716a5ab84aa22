"""One run of the moonhalo program: start it, break it, wait until all of its processes are gone."""

import os
import pathlib
import re
import resource
import signal
import subprocess
import time

START_LIMIT_S = 300
STEP_S = 0.02
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
LIMITS = {"AS": resource.RLIMIT_AS, "FSIZE": resource.RLIMIT_FSIZE, "NOFILE": resource.RLIMIT_NOFILE}


class Clock:
    """Seconds that this program ran too: a machine that stands still, or is frozen, makes nobody late."""

    def __init__(self):
        self.seconds, self.last = 0.0, time.monotonic()

    def tick(self):
        time.sleep(STEP_S)
        now = time.monotonic()
        self.seconds += min(now - self.last, 10 * STEP_S)
        self.last = now


def memory_in_use(pid):
    """Bytes of address space, which RLIMIT_AS limits."""
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


class Run:
    """`folder` holds the run's own marks and output; the program works in folder/work."""

    def __init__(self, command, folder, ranks, environment=None, user=None, stdout=None):
        self.folder, self.ranks = folder, ranks
        self.work = folder / "work"
        self.work.mkdir(exist_ok=True)
        for rank in range(ranks):
            os.mkfifo(folder / f"go.{rank}")
        variables = {**os.environ, **ENVIRONMENT, **(environment or {}), "TMPDIR": str(folder)}
        self.out, self.err = folder / "stdout", folder / "stderr"
        with open(stdout or self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                command,
                cwd=self.work,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=variables,
                start_new_session=True,
                user=user,
                extra_groups=[] if user else None,
            )
        self.clock = Clock()

    def pids(self):
        """All processes of the run, by their session; what mpirun starts is not a child of ours. Those that nobody
        waited for count not."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    state, _, _, session = (
                        pathlib.Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:4]
                    )
                except OSError:
                    continue
                if int(session) == self.process.pid and state != "Z":
                    found.append(int(entry))
        return found

    def rank_pids(self):
        return {int(path.name[6:]): int(path.read_text()) for path in self.folder.glob("ready.[0-9]")}

    def over(self):
        return self.process.poll() is not None and not self.pids()

    def wait_until(self, reached, limit_s):
        """Whether it was `reached` within the limit, counted by the run's clock."""
        end = self.clock.seconds + limit_s
        while not reached():
            if self.clock.seconds > end:
                return False
            self.clock.tick()
        return True

    def wait_ready(self, how_many):
        self.wait_until(lambda: len(self.rank_pids()) >= how_many or self.process.poll() is not None, START_LIMIT_S)
        return len(self.rank_pids()) >= how_many

    def act(self, action):
        """ "KILL 1", "STOP all", "TERM mpirun", "FSIZE 0 100000", "AS all 64000000" (more than now), "wait 5"."""
        verb, *words = action.split()
        if verb == "wait":
            self.wait_until(lambda: False, float(words[0]))
            return
        ranks = self.rank_pids()
        targets = {"all": set(ranks.values()), "mpirun": {self.process.pid}}.get(words[0]) or {ranks[int(words[0])]}
        for pid in targets:
            if verb in LIMITS:
                limit = int(words[1]) + (memory_in_use(pid) if verb == "AS" else 0)
                resource.prlimit(pid, LIMITS[verb], (limit, limit))
            else:
                os.kill(pid, signal.Signals["SIG" + verb])

    def go(self):
        """Lets ranks that wait in support.wait() go on."""
        for rank in range(self.ranks):

            def reading():
                try:
                    os.close(os.open(self.folder / f"go.{rank}", os.O_WRONLY | os.O_NONBLOCK))
                    return True
                except OSError:
                    return self.process.poll() is not None

            self.wait_until(reading, START_LIMIT_S)

    def end(self, limit_s):
        """Seconds until all processes were gone, or None: then they are killed."""
        begin = self.clock.seconds
        if self.wait_until(self.over, limit_s):
            return self.clock.seconds - begin
        self.kill()
        return None

    def kill(self):
        while not self.over():
            for pid in self.pids():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.clock.tick()

    def said(self, any_rank=False):
        return first_line(self.err.read_text(errors="replace"), self.folder, any_rank)

    def status(self):
        code = self.process.returncode
        return str(code) if code >= 0 else signal.Signals(-code).name


# Lines of launchers, which say nothing of the cause.
NOISE = re.compile(
    r"^(\s*$|-+$|\[[^\]]*\] |MPI_ABORT was|with errorcode|NOTE: invoking|You may or may not|exactly when Open|Primary"
    r" job|"
    r"a non-zero exit|mpirun has exited|moonhalo: rank \d+ stops all ranks)"
)
RANKS = re.compile(r"^ranks? [\d, -]+: ")
REPLACED = [
    (re.compile(r"0x[0-9a-f]+"), "ADDRESS"),
    (re.compile(r"\b(process rank \d+) with PID \d+ on node \S+"), r"\1"),
    (re.compile(r"^mpiexec(?= (noticed|detected))"), "mpirun"),
    (re.compile(r"unfinished-[\w.-]*\w"), "unfinished-*"),
    (re.compile(r" \(call \d+ of this group\)"), ""),
    (re.compile(r"\.\./(script|support)"), r"\1"),
    (re.compile(r"support\.lua:\d+"), "support.lua"),
    (re.compile(r"(?:\w+: rank \d+ of \d+ stops: |rank \d+ failed: )"), ""),
    (re.compile(r"((?:script|support)\.lua:?\d*: )\1"), r"\1"),
]


def normalised(line, folder, any_rank):
    line = RANKS.sub("", line).replace(f"{folder}/work/", "").replace(str(folder), "FOLDER")
    for pattern, text in REPLACED:
        line = pattern.sub(text, line)
    if any_rank:
        line = re.sub(r"\branks? \d+(, \d+)*", "rank N", line)
    return line[:160].strip()


def first_line(text, folder, any_rank=False):
    """What is said first. Ranks speak in any order, and some repeat what others failed with: the line that most say,
    then the first in the alphabet."""
    lines = [line for line in text.splitlines() if not NOISE.match(line)]
    spoken = [line for line in lines if RANKS.match(line)] or lines[:1]
    said = [normalised(line, folder, any_rank) for line in spoken]
    return min(said, key=lambda line: (-said.count(line), line)) if said else "nothing"
