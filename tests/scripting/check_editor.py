#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an editor shows of `moonhalo info --annotations FOLDER` (Y10): seven completions and five hovers, by the
Language Server Protocol. Skipped where there is no server: lua-language-server or emmylua_ls in PATH, or the program
that MOONHALO_LUA_SERVER names. usage: check_editor.py PROGRAM"""

import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
from own_python import check, finish

SERVERS = ("lua-language-server", "emmylua_ls")
LIMIT_S = 120
HEAD = """local mh = require "moonhalo"
local nn = mh.nn
local mesh = mh.init_device_mesh("cpu", {1}, {"domain"})
local x = mh.distribute_tensor(mh.ones({2, 3}), mesh, {mh.Shard(0)})
"""
# What is typed, with | where the cursor is -> names that must be offered.
COMPLETIONS = (
    ("mh.init_|", ("init_device_mesh",)),
    ("mh.cums|", ("cumsum",)),
    ("nn.Conv|", ("Conv2d", "ConvTranspose2d")),
    ("mh.optim.Ad|", ("AdamW",)),
    ("x:redis|", ("redistribute",)),
    ("nn.Conv2d(1, 2, 3, {padd|})", ("padding", "padding_mode")),
    ('nn.Conv2d(1, 2, 3, {padding_mode = "|"})', ("zeros", "reflect", "replicate", "circular")),
)
# What the cursor is on -> parts of what is shown.
HOVERS = (
    ("mh.set_ha|lo()", ("Collective",)),
    ("x:redistri|bute({})", ("placements", "The same global tensor")),
    ("nn.Con|v2d(1, 2, 3)", ("in_channels", "kernel_size")),
    ("mh.cum|sum(x, 0)", ("dim: integer", "Tensor")),
    ("mesh:coordi|nate()", ("integer[]",)),
)


def server_command():
    named = os.environ.get("MOONHALO_LUA_SERVER")
    found = named or next(filter(None, map(shutil.which, SERVERS)), None)
    if found is None:
        print(f"skipped: no Lua language server ({' or '.join(SERVERS)} in PATH, or MOONHALO_LUA_SERVER)")
        sys.exit(77)
    return [found]


class Server:
    """A language server: messages are JSON behind a header with their length."""

    def __init__(self, command, folder):
        self.process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.folder, self.count, self.read = folder, 0, queue.Queue()
        threading.Thread(target=self.receive, daemon=True).start()

    def receive(self):
        while line := self.process.stdout.readline():
            length = 0
            while line.strip():
                name, _, value = line.decode().partition(":")
                length = int(value) if name.lower() == "content-length" else length
                line = self.process.stdout.readline()
            self.read.put(json.loads(self.process.stdout.read(length)))
        self.read.put(None)

    def send(self, message):
        text = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        self.process.stdin.flush()

    def answer(self, message):
        """The server asks for settings and progress bars, too."""
        items = message.get("params", {}).get("items")
        self.send({"id": message["id"], "result": [None] * len(items) if items else None})

    def request(self, method, params):
        self.count += 1
        self.send({"id": self.count, "method": method, "params": params})
        while True:
            message = self.read.get(timeout=LIMIT_S)
            if message is None:
                sys.exit(f"the server ended with status {self.process.wait()}")
            if "method" in message:
                if "id" in message:
                    self.answer(message)
            elif message.get("id") == self.count:
                return message.get("result")

    def start(self):
        root = self.folder.as_uri()
        self.request(
            "initialize",
            {
                "processId": os.getpid(),
                "rootUri": root,
                "workspaceFolders": [{"uri": root, "name": "scripts"}],
                "capabilities": {
                    "textDocument": {"completion": {}, "hover": {"contentFormat": ["markdown", "plaintext"]}},
                    "workspace": {"configuration": True, "workspaceFolders": True},
                },
            },
        )
        self.send({"method": "initialized", "params": {}})

    def open(self, name, text):
        uri = (self.folder / name).as_uri()
        document = {"uri": uri, "languageId": "lua", "version": 1, "text": text}
        self.send({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        return uri

    def end(self):
        self.process.kill()
        self.process.wait()


def names_of(result):
    items = result.get("items", []) if isinstance(result, dict) else result or []
    # Servers show "padding? = ", "redistribute(placements)" and quotes.
    return {word[0] for one in items if (word := re.search(r"\w+", one["label"]))}


def text_of(result):
    contents = (result or {}).get("contents", "")
    parts = contents if isinstance(contents, list) else [contents]
    return "\n".join(part if isinstance(part, str) else part["value"] for part in parts)


def ask(server, name, line, method, read, wanted):
    """Asks until all that is wanted is there: a server reads its folder while it answers."""
    typed = HEAD + line.replace("|", "", 1) + "\n"
    uri = server.open(name, typed)
    position = {"line": HEAD.count("\n"), "character": line.index("|")}
    until = time.monotonic() + LIMIT_S
    while True:
        found = read(server.request(method, {"textDocument": {"uri": uri}, "position": position}))
        missing = [one for one in wanted if one not in found]
        if not missing or time.monotonic() > until:
            said = sorted(found)[:20] if isinstance(found, set) else found
            check(f"{method} of {line}: no {missing} in {said}", not missing)
            return
        time.sleep(0.2)


def main():
    command, program = server_command(), Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        subprocess.run([program, "info", "--annotations", folder], check=True)
        server = Server(command, folder)
        try:
            server.start()
            for number, (line, wanted) in enumerate(COMPLETIONS):
                ask(server, f"complete_{number}.lua", line, "textDocument/completion", names_of, wanted)
            for number, (line, wanted) in enumerate(HOVERS):
                ask(server, f"hover_{number}.lua", line, "textDocument/hover", text_of, wanted)
        finally:
            server.end()
    finish()


if __name__ == "__main__":
    main()
