# SPDX-License-Identifier: Apache-2.0
"""docs/models.md: the results of ./dev models as a page. The page can be read back, and what is read gives the same
page, so a change by hand is found (CTest models.page)."""

import collections
import datetime
import os
import platform
import re
import textwrap
from dataclasses import asdict, dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
RIGHT_SHARE = 0.98
# Ways to end that no model may have.
NEVER = ("wrong numbers", "deadlock", "crash")
# Packages as in packages.txt, by the file of tables/.
PACKAGES = {
    "diffusers": "diffusers",
    "e3nn": "e3nn",
    "monai": "monai",
    "neuralop": "neuraloperator",
    "physicsnemo": "nvidia-physicsnemo",
    "pyg": "torch-geometric",
    "pyg_more": "torch-geometric",
    "smp": "segmentation_models_pytorch",
    "timm": "timm",
    "torchvision": "torchvision",
    "transformers": "transformers",
    "transformers_more": "transformers",
}

HEAD = """# Models of PyTorch on cut fields

{says}

{verdict}

The models and their packages are unchanged; inputs are ShardTensors (`python.md`). Sizes are small and weights random.
Each model runs three times, in a process of its own, in float64, forward and backward with dropout: its input is cut
along one dim over 2 ranks, along one dim over 3 ranks, and along two dims over 2 x 2 ranks, in uneven blocks (empty
ones where a dim is short). Outputs, loss, gradients of inputs and parameters, and buffers are compared with a run on
plain tensors. *right* means: to 1e-9; models that magnify rounding more than this may differ by a hundred times what
rounding of their input does, at most 1e-6. Casts to float32 inside a model keep float64.

- *difference*: the largest of all compared tensors, relative to the largest number of the plain tensor
- *bytes moved*: by the rank that sends most, on 2 ranks, on 3 ranks, on 2 x 2 ranks
- *gathered*: operators without a rule for blocks, which run on the whole tensor on every rank

| model | package | result | difference | bytes moved | gathered |
|---|---|---|---|---|---|
"""
SAYS = (
    "`./dev models` wrote this page on {date}{again}, with PyTorch {pytorch} and Moonhalo {moonhalo}, on {machine}. "
    "A test finds changes by hand. `tests/models/README.md` says how to add a model."
)
WIDTH = 120
FIELDS = (
    r"`\./dev models` wrote this page on (?P<date>[^\s,]+)(?P<again>(?:, and \d+ of its rows on [^\s,]+)*), "
    r"with PyTorch (?P<pytorch>\S+) and Moonhalo (?P<moonhalo>\S+),"
) + r" on (?P<machine>[^.]+)\."


@dataclass
class Row:
    model: str
    package: str
    result: str
    difference: str
    bytes: str
    gathered: str


@dataclass
class Page:
    date: str
    pytorch: str
    moonhalo: str
    machine: str
    rows: list
    again: str = ""  # how many rows are of later runs


def cause_of(result):
    """The worst of all cases."""
    if "plain" in result:
        return "not run: " + result["plain"].strip().split("\n")[-1][:150]
    causes = [case["cause"] for case in result["cases"]]
    return next(
        (cause for cause in NEVER if cause in causes), next((cause for cause in causes if cause != "right"), "right")
    )


def difference_of(result):
    return max((found["distance"] for case in result["cases"] for found in case.get("worst", {}).values()), default=0.0)


def gathered_by(result):
    return sorted({name for case in result["cases"] for name in case.get("gathered", [])})


def bytes_text(count):
    for unit in ("B", "kB", "MB"):
        if count < 999.5 or unit == "MB":
            return f"{count:.3g} {unit}"
        count /= 1000


def _cell(text):
    """In a cell of a table, on one line."""
    return re.sub(r"\s+", " ", text).replace("|", "/").strip()


def row_of(result, versions):
    package = PACKAGES[result["family"]]
    ran = [case for case in result["cases"] if "bytes" in case]
    forward_alone = bool(ran) and all("loss" not in case["worst"] for case in ran if "worst" in case)
    return Row(
        model=result["name"] + (" (forward alone)" if forward_alone else ""),
        package=f"{package} {versions[package]}",
        result=_cell(cause_of(result)),
        difference=f"{difference_of(result):.0e}" if ran else "",
        bytes=", ".join(bytes_text(case["bytes"]) if "bytes" in case else "-" for case in result["cases"]),
        gathered=", ".join(f"`{name}`" for name in gathered_by(result)),
    )


def versions_of_packages():
    lines = (HERE / "packages.txt").read_text(encoding="utf-8").split("\n")
    return dict(line.split("==") for line in lines if "==" in line)


def machine():
    """In general words."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"a machine with {os.cpu_count()} CPU cores and {memory:.0f} GiB of memory ({platform.system()}, "
        f"{platform.machine()})"
    )


def page_of(results, pytorch, moonhalo):
    versions = versions_of_packages()
    return Page(
        date=datetime.date.today().isoformat(),
        pytorch=pytorch,
        moonhalo=moonhalo,
        machine=machine(),
        rows=[row_of(result, versions) for result in results],
    )


def updated(page, results, today):
    """The page with the rows of a later run of some models in the places of theirs."""
    versions = versions_of_packages()
    later = {(row.package, row.model): row for row in (row_of(result, versions) for result in results)}
    known = {(row.package, row.model) for row in page.rows}
    if not later.keys() <= known:
        raise ValueError(f"not on the page: {sorted(later.keys() - known)}\n  fix   ./dev models without a filter")
    rows = [later.get((row.package, row.model), row) for row in page.rows]
    before = re.sub(rf", and \d+ of its rows on {today}", "", page.again)
    return replace(page, rows=rows, again=f"{before}, and {len(later)} of its rows on {today}")


def _wrapped(text):
    return "\n".join(textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False))


def _verdict(rows):
    """How many are right, and a sentence for each cause of the others."""
    causes = collections.defaultdict(list)
    for row in rows:
        causes[row.result].append(row.model)
    right = len(causes.pop("right", []))
    share = "" if right == len(rows) else f" ({100 * right / len(rows):.1f} %)"
    packages = len({row.package for row in rows})
    return " ".join(
        [f"**{right} of {len(rows)} models of {packages} packages are right{share}.**"]
        + [f"{', '.join(names)}: {cause.rstrip('.')}." for cause, names in sorted(causes.items())]
    )


def written(page):
    """The text of the page."""
    facts = {key: value for key, value in asdict(page).items() if key != "rows"}
    head = HEAD.format(says=_wrapped(SAYS.format(**facts)), verdict=_wrapped(_verdict(page.rows)))
    lines = [
        "| "
        + " | ".join((row.model, row.package, row.result, row.difference, row.bytes, row.gathered or "none"))
        + " |"
        for row in page.rows
    ]
    return head + "\n".join(lines) + "\n"


def read(text):
    """The page that the text is, as far as it can be read: written(read(text)) shows the rest."""
    found = re.search(FIELDS, text.replace("\n", " "))
    if found is None:
        raise ValueError("the page does not say its date, versions and machine")
    rows = []
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("| ") else []
        if len(cells) == 6 and cells[0] != "model":
            rows.append(Row(*cells[:5], "" if cells[5] == "none" else cells[5]))
    return Page(rows=rows, **found.groupdict(""))


def faults_of(text, fewest_models=150, fewest_packages=10):
    """What is wrong with the text of the page, as sentences."""
    try:
        page = read(text)
    except ValueError as error:
        return [str(error)]
    faults, packages = [], {row.package for row in page.rows}
    for number, (mine, expected) in enumerate(zip(text.split("\n"), written(page).split("\n")), 1):
        if mine != expected:
            faults.append(f"line {number} is not as ./dev models writes it\n  have  {mine}\n  want  {expected}")
            break
    else:
        if text != written(page):
            faults.append("the page has more or fewer lines than ./dev models writes")
    right = sum(row.result == "right" for row in page.rows)
    never = [row.model for row in page.rows if row.result in NEVER]
    if never:
        faults.append(f"models with wrong numbers, a deadlock or a crash: {', '.join(never)}")
    if right < RIGHT_SHARE * len(page.rows):
        faults.append(f"{right} of {len(page.rows)} models are right, fewer than {100 * RIGHT_SHARE:.0f} %")
    if len(page.rows) < fewest_models or len(packages) < fewest_packages:
        faults.append(
            f"{len(page.rows)} models of {len(packages)} packages; wanted {fewest_models} of {fewest_packages}"
        )
    known = {f"{name} {version}" for name, version in versions_of_packages().items()}
    faults += [f"package {one} is not in packages.txt; run ./dev models again" for one in sorted(packages - known)]
    for row in page.rows:
        if row.result == "right" and not re.fullmatch(r"[0-9.]+e[-+][0-9]+", row.difference):
            faults.append(f'{row.model}: right, but the difference is "{row.difference}"')
        elif row.result == "right" and float(row.difference) > 1e-6:
            faults.append(f"{row.model}: right, but the difference is {row.difference}")
        if row.result == "right" and len(row.bytes.split(", ")) != 3:
            faults.append(f"{row.model}: right, but there are not three counts of bytes")
    return faults
