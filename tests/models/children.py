# SPDX-License-Identifier: Apache-2.0
"""Each model in a process of its own: a copy of this one (os.fork), which has imported the model's package already.
That takes longer than most models. This process computes nothing and starts no thread, so its copies are whole."""

import faulthandler
import importlib
import json
import os
import signal
import tempfile
import time
import traceback
from pathlib import Path

import one_model
from table import import_names

TO_PRINT_THREADS = 20  # seconds


class Child:
    """A model that runs."""

    def __init__(self, model, folder, which):
        self.model, self.begin, self.late, self.killed = model, time.monotonic(), False, False
        self.path = Path(folder) / f"{model.family}.{model.name}.json"
        self.output = tempfile.TemporaryFile()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(which)

    def _run(self, which):
        """In the copy; it does not return."""
        status = 1
        try:
            for descriptor in (1, 2):
                os.dup2(self.output.fileno(), descriptor)
            faulthandler.enable()
            one_model.main(self.model.family, self.model.name, self.path, which)
            status = 0
        except BaseException:  # also SystemExit: this process must end here
            traceback.print_exc()
        finally:
            os._exit(status)

    def seconds(self):
        return time.monotonic() - self.begin

    def stop_late(self, limit):
        """SIGABRT lets faulthandler print where each thread stands."""
        if not self.late and self.seconds() > limit:
            self.late = True
            os.kill(self.pid, signal.SIGABRT)
        elif not self.killed and self.seconds() > limit + TO_PRINT_THREADS:
            self.killed = True
            os.kill(self.pid, signal.SIGKILL)

    def result(self, status):
        self.output.seek(0)
        said = self.output.read().decode(errors="replace")
        result = json.loads(self.path.read_text()) if self.path.exists() else {"cases": []}
        result.update(family=self.model.family, name=self.model.name, seconds=round(self.seconds(), 1))
        if self.late or status:
            ended = "deadlock" if self.late else "crash"
            result["cases"].append({**result.get("running", {}), "cause": ended, "message": said[-6000:]})
        return result


def ended(children):
    """One child that has ended and its wait status, or None."""
    for child in children:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            return child, status
    return None


def run_models(models, which, jobs, limit):
    """Yields the result of each model, in the order in which they end. `models` are in the order of families."""
    waiting, children, imported = list(models), [], set()
    with tempfile.TemporaryDirectory() as folder:
        while waiting or children:
            if waiting and len(children) < jobs:
                if waiting[0].family not in imported:
                    imported.add(waiting[0].family)
                    import_names(importlib.import_module("tables." + waiting[0].family).MODELS)
                children.append(Child(waiting.pop(0), folder, which))
                continue
            found = ended(children)
            if found is None:
                for child in children:
                    child.stop_late(limit)
                time.sleep(0.02)
                continue
            children.remove(found[0])
            yield found[0].result(found[1])
