#!/usr/bin/env python3
"""Draws the pictures of the guide as SVG into docs/pictures. usage: pictures.py [--check]; --check writes nothing and
ends with status 1 if a picture is not what this script draws."""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
FOLDER = DOCS / "pictures"
RANKS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1")
PALE = ("#c6d4e3", "#fbdcbd", "#cbe2c7", "#e3d3df")
INK, GREY = "#222222", "#888888"


class Picture:
    """An SVG of rectangles, lines and text; sizes are pixels."""

    def __init__(self, width, height, title):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' font-family="sans-serif" role="img" aria-label="{title}">',
            f"<title>{title}</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
            f' orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        ]

    def box(self, x, y, width, height, fill, line="#ffffff", thick=1):
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{line}"'
            f' stroke-width="{thick}"/>'
        )

    def text(self, x, y, words, size=13, anchor="start", fill=INK, bold=False):
        weight = ' font-weight="bold"' if bold else ""
        words = words.replace("&", "&amp;").replace("<", "&lt;")
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{weight}>{words}</text>'
        )

    def arrow(self, x1, y1, x2, y2):
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{INK}" stroke-width="1.5"'
            ' marker-end="url(#head)"/>'
        )

    def svg(self):
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def halo_exchange():
    """Three blocks of rows; each has two more rows of its neighbours around it."""
    picture = Picture(640, 300, "A field cut into three blocks, and the rows that neighbours send")
    cell, columns, rows = 14, 12, (5, 4, 4)
    picture.text(20, 24, "the field", bold=True)
    picture.text(250, 24, "what each rank has: block and halo of a 3 x 3 kernel", bold=True)
    top = 60
    for rank, count in enumerate(rows):
        for row in range(count):
            for column in range(columns):
                picture.box(20 + column * cell, top + row * cell, cell, cell, RANKS[rank])
        picture.text(20 + columns * cell + 8, top + count * cell / 2 + 4, f"rank {rank}")
        top += count * cell
    for rank, count in enumerate(rows):
        left, at = 260 + rank * 126, 60 + (cell if rank == 0 else 0)
        picture.text(left + 50, 48, f"rank {rank}", anchor="middle")
        owners = [rank - 1] * (rank > 0) + [rank] * count + [rank + 1] * (rank < 2)
        for row, owner in enumerate(owners):
            for column in range(7):
                fill = RANKS[rank] if owner == rank else PALE[owner]
                picture.box(left + column * cell, at + row * cell, cell, cell, fill)
    for rank in (0, 1):
        left = 260 + rank * 126
        picture.arrow(left + 100, 60 + 5.5 * cell, left + 124, 60 + 0.7 * cell)
        picture.arrow(left + 124, 60 + 1.6 * cell, left + 100, 60 + 6.4 * cell)
    picture.text(20, 280, "Dark: rows that a rank owns. Pale: rows that a neighbour owns and sends.", fill=GREY)
    return picture.svg()


def owned(placements, row, column):
    """Which cells (a set) of a 4 x 4 tensor the rank (row, column) of a 2 x 2 mesh has."""
    rows, columns = list(range(4)), list(range(4))
    for placement, at in zip(placements, (row, column), strict=True):
        if placement == "Shard(0)":
            rows = rows[at * len(rows) // 2 : (at + 1) * len(rows) // 2]
        elif placement == "Shard(1)":
            columns = columns[at * len(columns) // 2 : (at + 1) * len(columns) // 2]
    return {(i, j) for i in rows for j in columns}


def placements():
    """A tensor of 4 x 4 on a mesh of 2 x 2 ranks, under four placements."""
    cases = (
        ("Shard(0)", "Shard(1)"),
        ("Shard(0)", "Replicate()"),
        ("Replicate()", "Shard(1)"),
        ("Shard(0)", "Shard(0)"),
    )
    picture = Picture(760, 240, "A 4 x 4 tensor on a mesh of 2 x 2 ranks, under four placements")
    cell = 13
    for number, case in enumerate(cases):
        left = 20 + number * 185
        picture.text(left, 24, "{" + ", ".join(case) + "}", size=12, bold=True)
        for rank in range(4):
            row, column = divmod(rank, 2)
            x, y = left + column * 75, 50 + row * 85
            picture.text(x, y - 5, f"rank {rank}", size=11)
            has = owned(case, row, column)
            for i in range(4):
                for j in range(4):
                    fill = RANKS[rank] if (i, j) in has else "#eeeeee"
                    picture.box(x + j * cell, y + i * cell, cell, cell, fill)
    picture.text(20, 225, "Coloured: the cells that a rank has. The mesh has ranks 0, 1 above 2, 3.", fill=GREY)
    return picture.svg()


def chunks():
    """A file of 3 x 4 chunks, whose rows are cut at places that are no borders of chunks."""
    picture = Picture(700, 290, "Chunks of a file: one rank reads and decodes each, and sends parts to others")
    size, borders = 48, (0, 64, 112, 144)
    picture.text(20, 24, "chunks of the file, and the cut of the rows", bold=True)
    for row in range(3):
        middle = row * size + size / 2
        reader = next(rank for rank in range(3) if borders[rank] <= middle < borders[rank + 1])
        for column in range(4):
            picture.box(20 + column * size, 50 + row * size, size, size, PALE[reader])
            picture.text(20 + column * size + size / 2, 50 + middle + 4, f"{reader}", anchor="middle", fill=GREY)
    for rank in range(3):
        top, bottom = 50 + borders[rank], 50 + borders[rank + 1]
        picture.box(20, top, 4 * size, bottom - top, "none", INK, 2)
        picture.text(222, (top + bottom) / 2 + 4, f"rows of rank {rank}")
    picture.text(370, 24, "each chunk is decoded once", bold=True)
    for rank in range(3):
        y = 50 + rank * 62
        picture.box(370, y, 90, 40, PALE[rank])
        picture.text(415, y + 24, f"rank {rank} reads", size=12, anchor="middle")
        picture.box(560, y, 110, 40, RANKS[rank])
        picture.text(615, y + 24, f"block of rank {rank}", size=12, anchor="middle", fill="#ffffff")
        picture.arrow(460, y + 20, 556, y + 20)
    for rank in (0, 1):  # the rank below reads a row of chunks that this rank needs, too
        picture.arrow(460, 50 + (rank + 1) * 62 + 14, 556, 50 + rank * 62 + 30)
    for y, words in (
        (245, "The number in a chunk is the rank that reads it. Two rows of chunks are cut. One rank"),
        (264, "decodes such a chunk and sends a part of it. No rank holds the whole field."),
    ):
        picture.text(20, y, words, fill=GREY)
    return picture.svg()


def one_forward_one_backward(ranks, micros):
    """{(rank, "F" or "B", micro): start}; forwards take 1, backwards 2, as in the schedule "1f1b"."""
    orders = []
    for rank in range(ranks):
        ahead = min(ranks - rank, micros)
        order = [("F", i) for i in range(ahead)]
        for i in range(micros):
            order.append(("B", i))
            if ahead + i < micros:
                order.append(("F", ahead + i))
        orders.append(order)
    start, free, done = {}, [0] * ranks, {}
    while any(orders):
        for rank, order in enumerate(orders):
            if not order:
                continue
            kind, micro = order[0]
            before = rank - 1 if kind == "F" else rank + 1
            needs = ("F", rank, micro) if before == ranks else (kind, before, micro)
            if before >= 0 and needs not in done:
                continue
            begin = max(free[rank], done[needs] if before >= 0 else 0)
            start[rank, kind, micro] = begin
            free[rank] = done[kind, rank, micro] = begin + (1 if kind == "F" else 2)
            order.pop(0)
    return start


def pipeline():
    """The schedule 1f1b of 3 ranks and 6 small batches."""
    picture = Picture(760, 210, "Schedule of a pipeline: three ranks, six micro-batches, forward and backward in turn")
    unit, left = 27, 70
    for rank in range(3):
        picture.text(16, 67 + rank * 42, f"rank {rank}")
        picture.box(left, 45 + rank * 42, 24 * unit, 34, "#f4f4f4")
    for (rank, kind, micro), begin in one_forward_one_backward(3, 6).items():
        width, colour = (unit, PALE[0]) if kind == "F" else (2 * unit, RANKS[1])
        picture.box(left + begin * unit, 45 + rank * 42, width, 34, colour)
        picture.text(left + begin * unit + width / 2, 67 + rank * 42, f"{micro}", anchor="middle")
    picture.text(left, 28, "time", fill=GREY)
    picture.arrow(left + 34, 24, left + 120, 24)
    picture.box(left, 180, 16, 14, PALE[0])
    picture.text(left + 22, 192, "forward of a micro-batch", size=12)
    picture.box(left + 190, 180, 16, 14, RANKS[1])
    picture.text(left + 212, 192, "backward", size=12)
    picture.box(left + 300, 180, 16, 14, "#f4f4f4", GREY)
    picture.text(left + 322, 192, "waiting", size=12)
    return picture.svg()


def memory_rows():
    """[(model, [(kind, MB)])] of the table in parallelism.md."""
    found = []
    for line in (DOCS / "parallelism.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 6 and re.fullmatch(r"[\d.]+", cells[5]):
            if cells[0]:
                found.append((cells[0], []))
            found[-1][1].append((cells[1], float(cells[5])))
    assert len(found) >= 3, "parallelism.md has no table of figures"
    return found


def memory():
    """Memory of a rank for the kinds of parallelism, from the table in parallelism.md."""
    rows = memory_rows()
    height = 60 + sum(30 + 22 * len(kinds) for _, kinds in rows)
    picture = Picture(720, height, "Memory of a rank for the kinds of parallelism, on 8 ranks")
    picture.text(20, 26, "memory of a rank, MB, on 8 ranks: parameters, gradients, states, activations", bold=True)
    y = 50
    for model, kinds in rows:
        largest = max(value for _, value in kinds)
        picture.text(20, y + 12, model, size=12, bold=True)
        y += 20
        for kind, value in kinds:
            colour = RANKS[2] if value == min(number for _, number in kinds) else RANKS[0]
            picture.text(160, y + 13, kind, size=12, anchor="end")
            picture.box(170, y, max(2, 440 * value / largest), 17, colour)
            picture.text(176 + 440 * value / largest, y + 13, f"{value:g}", size=12)
            y += 22
        y += 10
    return picture.svg()


PICTURES = {
    "halo_exchange": halo_exchange,
    "placements": placements,
    "chunks": chunks,
    "pipeline": pipeline,
    "memory": memory,
}


def main():
    check = sys.argv[1:] == ["--check"]
    old = []
    for name, draw in PICTURES.items():
        path, text = FOLDER / f"{name}.svg", draw()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            old.append(f"{path.name} is not what docs/tools/pictures.py draws")
        else:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if check:
        drawn = {f"{name}.svg" for name in PICTURES}
        old += [f"{path.name} is drawn by nothing" for path in sorted(FOLDER.glob("*")) if path.name not in drawn]
    print("\n".join(old) if old else f"{len(PICTURES)} pictures are up to date")
    sys.exit(1 if old else 0)


if __name__ == "__main__":
    main()
