#!/usr/bin/env python3
"""Writes docs/errors.md from the scripts of tests/scripting/mistakes: each with the message that it ends with, which a
test compares. usage: errors.py [--check]; --check writes nothing and ends with status 1 if the page is not what this
script writes."""

import re
import shlex
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/scripting"))
from check_mistakes import FOLDER, Mistake

PAGE = SOURCE / "docs/errors.md"
HEAD = """# Errors

<!-- Written by docs/tools/errors.py. -->

These are scripts with one mistake each, and all that the program prints. A test runs every script and compares the
message. An error names the line, and the module if there is one. Below it `have` is what was found, and `fix` the remedy.

Search this page for words of your message. `moonhalo help NAME` has the arguments of a function.

| status | what it means |
|---|---|
| 0 | the script ended |
| 1 | an error in the script, or in one of its files |
| 2 | the command line or a setting is wrong |
| 3 | ranks were lost, waited for each other, or made different calls |
| 128 + n | signal n ended the program |
| other | the number that the script gave to `os.exit` |

LibTorch's own messages are printed as they are, with the script's line, the call and, where the cause is known, a
remedy. A Python traceback has no counterpart: the last lines name the modules that were called.
"""
# Title of a group and the names of its scripts; the first that matches.
GROUPS = (
    (
        "Ranks that differ",
        r"rank_|random_row|seed_by_rank|exit_one|plain_differs|pairs_of|one_file|print_of|tail_constr|no_ranks",
    ),
    (
        "Command line and settings",
        r"set_|option_|config_|unknown_setting|words_without|print_extra|log_full|device_|too_large",
    ),
    ("Meshes and placements", r"mesh_|mixed_meshes|shard_range|cut_|plan_|dim_range_cut|safetensors_of"),
    ("Data and files", r"data_|dataset_|batch_f|batch_w|loader_|file_|files_|load_|plain_hdf5|plot_|default_dtype"),
    ("Saving and loading", r"checkpoint_|save_|state_shapes|optimizer_state|load_pt"),
    ("Optimizers and schedules", r"adam_|optimizer_|scheduler_|misspelt_optimizer|step_of|nan_loss|groups_from"),
    (
        "Modules and layers",
        r"batch_norm|batchnorm|class$|conv_|dtype_of|embedding|layer_|list_of_mod|module_|misspelt_layer|nested|nil_in|no_forw"
        r"|own_error|sequential|ipairs|self_with|hook|net_to|unknown_field|local_typo",
    ),
    ("Gradients", r"backward_|grad_|in_place|integer_grad|single_tensor"),
    (
        "Python's habits",
        r"python_|def$|elif|elseif|from_|import|for_|hash_|if_colon|is_none|not_|dict_|keyword|power|plus_eq|require_"
        r"|with_|x_numpy|continue|matmul_sign|string_plus|table_app|assign_in|index_two|index_col|shape_|dot_|size_as|comparison|to_cuda",
    ),
    ("Tensors", r".*"),
)


def described(mistake):
    """(group, heading, command or "", script, message) of one script."""
    # The message repeats lines of the script, which are shown above.
    shown = [line for line in mistake.expected.splitlines() if not re.match(r"^ +\d+ \| ", line)]
    name = mistake.path.stem
    group = next(title for title, names in GROUPS if re.match(names, name))
    ranks = mistake.ranks[0]
    words = (["--ranks", str(ranks)] if ranks != 1 else []) + mistake.options
    command = shlex.join(["moonhalo", "run", mistake.path.name, *words]) if words else ""
    return group, name.replace("_", " "), command, mistake.code(), "\n".join(shown).strip("\n")


def page():
    cases = {}
    for path in sorted(FOLDER.glob("*.lua")):
        group, *rest = described(Mistake(path))
        cases.setdefault(group, []).append(rest)
    parts = [HEAD]
    for title, _ in GROUPS:
        parts.append(f"## {title}\n")
        for heading, command, script, message in cases.get(title, ()):
            # The first line of a script is not new.
            script = re.sub(r'^local mh = require "moonhalo"\n', "", script)
            code = "\n".join([f"-- {command}", script] if command else [script])
            parts.append(f"### {heading}\n\n```text\n{code}\n```\n\n```text\n{message}\n```\n")
    return "\n".join(parts)


def main():
    text = page()
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        print("docs/errors.md is not what docs/tools/errors.py writes; run ./dev pages")
        sys.exit(1)
    print("docs/errors.md is up to date")


if __name__ == "__main__":
    main()
