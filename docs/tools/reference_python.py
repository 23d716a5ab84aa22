"""Entries of the Python package: each public name with its signature and docstring, read from the imported package; and
the pages of PyTorch's reference about operators. usage: reference_python.py FOLDER_OF_THE_PACKAGE writes them as JSON."""

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


def is_documented(space, name):
    value = getattr(space, name, None)
    return callable(value) and bool(inspect.getdoc(value))


def page_of_operator(torch, name):
    """The path of the page of PyTorch's reference about an operator of ATen, or None."""
    functional = torch.nn.functional
    for prefix in ("linalg", "fft"):
        last = name.removeprefix(prefix + "_")
        if last != name and is_documented(getattr(torch, prefix), last):
            return f"generated/torch.{prefix}.{last}.html"
    last = name.removeprefix("special_")
    if last != name and is_documented(torch.special, last):
        return f"special.html#torch.special.{last}"
    # A function that torch.nn.functional shares with torch has its page there.
    if is_documented(torch, name) and getattr(torch, name) is not getattr(functional, name, None):
        return f"generated/torch.{name}.html"
    if is_documented(functional, name):
        return f"generated/torch.nn.functional.{name}.html"
    return f"generated/torch.Tensor.{name}.html" if is_documented(torch.Tensor, name) else None


def pages_of_operators(torch):
    """Name -> address."""
    schemas = torch._C._jit_get_all_schemas()
    names = sorted({schema.name.split("::")[1] for schema in schemas if schema.name.startswith("aten::")})
    pages = {name: page_of_operator(torch, name) for name in names if not name.startswith("_")}
    return {name: "https://docs.pytorch.org/docs/stable/" + page for name, page in pages.items() if page}


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    import moonhalo
    import torch

    json.dump({"moonhalo": entries(moonhalo), "operators": pages_of_operators(torch)}, sys.stdout, indent=1)
