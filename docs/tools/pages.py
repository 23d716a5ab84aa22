"""The pages of docs/: which there are, and the code in them."""

import re

PATTERNS = ("docs/*.md", "docs/guide/*.md")
FENCE = re.compile(r"\s*```(.*)")


def pages_of(root):
    """All pages by path, docs/README.md first."""
    return sorted(
        {path for pattern in PATTERNS for path in root.glob(pattern)}, key=lambda one: (one.name != "README.md", one)
    )


def listed_pages(root):
    """The names of pages that docs/README.md lists, each once, in its order: "guide/02_lua.md", "faq.md"."""
    table = root / "docs/README.md"
    text = table.read_text(encoding="utf-8") if table.exists() else ""
    return list(dict.fromkeys(re.findall(r"[`(]((?:guide/)?[\w-]+\.md)", text)))


def lines_of(text):
    """(number, line, language of the code that it is in or None, whether it opens code)."""
    language = None
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if fence:
            opens = language is None
            language = fence[1].strip() if opens else None
            yield number, line, language, opens
        else:
            yield number, line, language, False


def blocks_of(text):
    """[(language, number of the first line, lines)] of the fenced blocks of a page."""
    found, language = [], None
    for number, line, language, opens in lines_of(text):
        if opens:
            found.append((language, number + 1, []))
        elif language is not None:
            found[-1][2].append(line)
    assert language is None, f"the last block has no end: line {found[-1][1] - 1}"
    return found


def blocks(path):
    return blocks_of(path.read_text(encoding="utf-8"))


def first_block(path, language, heading=None):
    """The first block of a page in a language, as the text of a file; with a heading of the second level, below it."""
    text = path.read_text(encoding="utf-8")
    if heading:
        text = text.split(f"\n## {heading}\n", 1)[1]
    return "\n".join(next(lines for name, _, lines in blocks_of(text) if name == language)) + "\n"


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
