"""Blocks of code in pages of docs/."""

import re

FENCE = re.compile(r"^```(\w*)\s*$")


def blocks(path):
    """[(language, number of the first line, lines)] of the fenced blocks of a page."""
    found, language, start, lines = [], None, 0, []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if not fence:
            if language is not None:
                lines.append(line)
        elif language is None:
            language, start, lines = fence[1], number + 1, []
        else:
            found.append((language, start, lines))
            language = None
    assert language is None, f"{path}: the last block has no end"
    return found


def pairs(path):
    """[((line, lines) of Python, (line, lines) of Lua)]: each block of Python is followed by its Lua."""
    found, python = [], None
    for language, start, lines in blocks(path):
        if language not in ("python", "lua"):
            continue
        assert (language == "lua") == (python is not None), f"{path}:{start}: a block of {language} without its pair"
        if language == "python":
            python = (start, lines)
        else:
            found.append((python, (start, lines)))
            python = None
    assert python is None, f"{path}:{python and python[0]}: a block of python without its pair"
    return found
