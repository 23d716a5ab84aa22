"""What is under the final names before and after a fault."""

import hashlib
import re
import shutil

NAMES = ("field.h5", "ck", "weights.safetensors", "log.jsonl")
OLD, NEW = 1, 2
WRITE_OLD = f"""
local s = dofile("../support.lua")
s.save_h5({OLD}) s.save_ck({OLD}) s.save_safetensors({OLD}) s.mh.log{{version = {OLD}}}
"""
# Version of each name given after --, or why it has none.
CHECK = """
local s = dofile("../support.lua")
for _, name in ipairs(arg) do
  local read, version = pcall(s.version[name], name)
  print(name, read and version or "damaged: " .. tostring(version):match("[^\\n]*"))
end
"""


def content(path):
    """Hash of a file, or of all files in a folder and their names; None if there is nothing."""
    if not path.exists():
        return None
    paths = sorted(path.rglob("*")) if path.is_dir() else [path]
    sums = hashlib.sha256()
    for one in paths:
        sums.update(str(one.relative_to(path)).encode() + (one.read_bytes() if one.is_file() else b"/"))
    return sums.hexdigest()


def put_old(source, work, names):
    for name in names:
        copy = shutil.copytree if (source / name).is_dir() else shutil.copyfile
        copy(source / name, work / name)


def versions(moonhalo, work, names):
    """{name: what is under it}, as Moonhalo reads it."""
    said = moonhalo(CHECK, work, ["--", *names])
    return dict(line.split("\t", 1) for line in said.splitlines() if "\t" in line)


def left_over(work, expected, killed):
    """Names that a run should not leave. A killed rank has no chance to remove its unfinished file."""
    names = {
        re.sub(r"(unfinished|partial|old)-.*", r"\1-*", path.name)
        for path in work.iterdir()
        if path.name not in expected
    }
    return sorted(name for name in names if not (killed and "unfinished" in name))


def contents(work, names):
    return {name: content(work / name) for name in names}


def state(moonhalo, work, before, killed, may_write):
    """One line: each watched name, then what is left beside them. `before`: contents of all names that were there."""
    now, parts = contents(work, before), []
    watched = [name for name in NAMES if name in before]
    changed = [name for name in watched if now[name] not in (None, before[name])]
    read = versions(moonhalo, work, changed) if changed else {}
    for name in before:
        if now[name] is None:
            parts.append(f"{name} is gone")
        elif now[name] == before[name]:
            parts.append(f"{name} as before")
        elif name in watched:
            version = read.get(name, "damaged: the check said nothing")
            parts.append(
                f"{name} " + {str(OLD): "with the old values", str(NEW): "new and complete"}.get(version, version)
            )
        else:
            parts.append(f"{name} changed")
    left = left_over(work, before, killed)
    if left:
        parts.append("left over: " + ", ".join(left))
    if killed and may_write and any("unfinished" in name for name in left_over(work, before, False)):
        moonhalo(WRITE_OLD, work, [])
        left = left_over(work, {*NAMES, *before}, False)
        if left:
            parts.append("left by the next writer: " + ", ".join(left))
    return "; ".join(parts) or "nothing"
