"""Entries of the Python package: each public name with its signature and docstring, read from the imported package.
usage: reference_python.py FOLDER_OF_THE_PACKAGE writes them as JSON."""

import inspect
import json
import re
import sys

COLLECTIVE = re.compile(r"[Cc]ollective")


def text_of(value):
    """(signature or "", docstring) of a function: pybind11 writes the signature as the first line."""
    doc = inspect.getdoc(value) or ""
    first, _, rest = doc.partition("\n")
    if re.match(r"\w+\(.*\) -> ", first):
        return re.sub(r"moonhalo\._moonhalo\.", "", first), rest.strip()
    try:
        return value.__name__ + str(inspect.signature(value)), doc
    except (TypeError, ValueError, AttributeError):
        return "", doc


def members_of(name, kind):
    """Public methods and properties that the class itself defines."""
    for member, value in sorted(vars(kind).items()):
        if member.startswith("_") or not (callable(value) or isinstance(value, property)):
            continue
        signature, doc = ("", value.__doc__ or "") if isinstance(value, property) else text_of(value)
        yield {"name": f"{name}.{member}", "signature": signature, "doc": doc, "kind": "member"}


def entries(package):
    found = []
    for name in sorted(name for name in dir(package) if not name.startswith("_") and name != "ops"):
        value = getattr(package, name)
        if inspect.ismodule(value):
            continue
        signature, doc = ("", inspect.getdoc(value) or "") if inspect.isclass(value) else text_of(value)
        found.append(
            {
                "name": name,
                "signature": signature,
                "doc": doc,
                "kind": "class" if inspect.isclass(value) else "function",
            }
        )
        if inspect.isclass(value) and not issubclass(value, BaseException) and name != "ShardTensor":
            found += members_of(name, value)
    return found


def problems(package):
    """What is wrong with docstrings: none, no sentence, or no word on whether a function is collective."""
    for entry in entries(package):
        if not re.search(r"[.)]\s*$", entry["doc"]):
            yield f"moonhalo.{entry['name']}: no docstring that ends with a sentence"
        elif entry["kind"] == "function" and not COLLECTIVE.search(entry["doc"]):
            yield f"moonhalo.{entry['name']}: the docstring does not say whether it is collective"


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    import moonhalo

    json.dump(entries(moonhalo), sys.stdout, indent=1)
