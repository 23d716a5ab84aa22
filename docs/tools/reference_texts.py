"""Texts that the program has of the reference: what `moonhalo help` prints, and annotations for editors (those of
LuaLS)."""

import re

HEAD = """// Written by docs/tools/reference.py.
#include "moonhalo/scripting/core/reference.h"

namespace moonhalo::scripting {

const std::vector<ReferenceEntry>& reference() {
  static const std::vector<ReferenceEntry> entries = {
"""
FOOT = """  };
  return entries;
}

}  // namespace moonhalo::scripting
"""


def lua_type(text):
    """ "{integer}" -> "integer[]", "{name = Tensor}" -> "table", "Tensor?" stays."""
    optional = text.endswith("?")
    parts = []
    for part in text.rstrip("?").split("|"):
        listed = re.fullmatch(r"\{(\w+)\}", part)
        parts.append(f"{listed[1]}[]" if listed else "table" if part.startswith("{") else part)
    return "|".join(parts) + ("?" if optional else "")


def parameter(argument, entry):
    facts = entry.arguments.get(argument["name"], {"type": "any", "text": ""})
    kind = lua_type(facts["type"])
    optional = argument["default"] is not None or kind.endswith("?")
    default = f" (default: {argument['default']})" if argument["default"] not in (None, "nil") else ""
    return optional, kind.rstrip("?"), facts["text"] + default


def annotation_of(entry, signature):
    """The block of one name: `---` lines and an empty function, or a field."""
    name, lines = signature["name"], []
    if name.startswith(("C.", "Fortran.")):
        return ""
    owner = name.replace(":", ".") + ".options"
    if signature["options"]:
        lines.append(f"---@class {owner}")
        for option in signature["options"]:
            optional, kind, text = parameter(option, entry)
            lines.append(f"---@field {option['name']}{'?' if optional else ''} {kind} {text}".rstrip())
        lines.append("")
    lines += ["--- " + entry.description]
    if entry.collective and entry.collective["text"] != "no":
        lines += ["---", "--- Collective " + entry.collective["text"] + "."]
    if not signature["function"]:
        return "\n".join([*lines, f"---@type {lua_type(signature['result'])}", f"{name} = nil", ""])
    names = []
    for argument in signature["positional"]:
        if argument["name"] == "...":
            names.append("...")
            continue
        optional, kind, text = parameter(argument, entry)
        names.append(argument["name"])
        lines.append(f"---@param {argument['name']}{'?' if optional else ''} {kind} {text}".rstrip())
    if signature["options"]:
        names.append("options")
        lines.append(f"---@param options? {owner}")
    if entry.returns and entry.returns["type"] != "nothing":
        lines.append(f"---@return {lua_type(entry.returns['type'])} # {entry.returns['text']}".rstrip(" #"))
    return "\n".join([*lines, f"function {name}({', '.join(names)}) end", ""])


def literal(text):
    """A raw string of C++, in pieces that every compiler takes."""
    assert ')ref~"' not in text
    return " ".join(f'R"ref~({text[at : at + 8000]})ref~"' for at in range(0, max(1, len(text)), 8000))


def most_arguments(entry, signature):
    """How many arguments a call may have, without the object of a method: in Lua's functions, options may also be given
    by position. -1: any number, or not a function."""
    positional, options = len(signature["positional"]), len(signature["options"])
    if not signature["function"] or any(one["name"] == "..." for one in signature["positional"]):
        return -1
    if entry.file.endswith(".lua"):
        return positional + options
    return positional + min(options, 1)


def cpp_source(entries):
    rows = []
    for entry in sorted(entries, key=lambda one: one.signatures[0]["name"]):
        names = ", ".join(f'"{signature["name"]}"' for signature in entry.signatures)
        notes = ", ".join(literal(annotation_of(entry, signature)) for signature in entry.signatures)
        text = "\n".join(entry.text).rstrip() + "\n"
        calls = ", ".join(literal(signature["text"].rpartition(" -> ")[0]) for signature in entry.signatures)
        most = ", ".join(str(most_arguments(entry, signature)) for signature in entry.signatures)
        rows.append(
            f"      {{{{{names}}},\n       {literal(text)},\n       {{{notes}}},\n       {{{calls}}},\n"
            f"       {{{most}}},\n       {str(entry.file.endswith('.lua')).lower()}}},\n"
        )
    return HEAD + "".join(rows) + FOOT
