# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel of `pip install .` (PEP 517) and of `./dev wheel` (build_wheel.py FOLDER): CMake makes the library
and the module for the PyTorch of the environment that pip installs into. MOONHALO_BUILD=<a build folder> goes on with
that one; where it has the module already, it is taken as it is: another process may be building there, and two at once
spoil each other's files."""

import base64
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]


def _torch():
    for scheme in ("platlib", "purelib"):
        folder = Path(sysconfig.get_path(scheme, vars={"base": sys.prefix, "platbase": sys.prefix})) / "torch"
        if (folder / "lib/libtorch_python.so").exists():
            return folder
    sys.exit(f"moonhalo: PyTorch is not installed here\n  have  {sys.prefix}\n  fix   pip install torch first")


def _tag():
    return f"cp{sys.version_info[0]}{sys.version_info[1]}"


def _folder(torch):
    """A build fits one version of Python and one of PyTorch."""
    version = re.search(r"__version__ = '([^']+)", (torch / "version.py").read_text())[1]
    return SOURCE / f"build/python-{_tag()}-torch{version}"


def _build():
    given = os.environ.get("MOONHALO_BUILD")
    folder = Path(given).resolve() if given else _folder(_torch())
    if given and list((folder / "python/moonhalo").glob("_moonhalo.*")):
        return folder
    if not given or not (folder / "build.ninja").exists():  # again where PyTorch is in another place by now
        subprocess.run(
            [
                "cmake",
                "-S",
                SOURCE,
                "-B",
                folder,
                "-G",
                "Ninja",
                "-DCMAKE_BUILD_TYPE=Release",
                "-DMOONHALO_TESTS=OFF",
                f"-DMOONHALO_TORCH={_torch()}",
            ],
            check=True,
        )
    subprocess.run(["cmake", "--build", folder, "--target", "moonhalo_python"], check=True)
    return folder


def _version():
    return re.search(r"project\(moonhalo VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())[1]


def _read_dynamic(library):
    """(folders that a library looks for others in, names of those)."""
    dump = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    paths = re.findall(r"\((?:RPATH|RUNPATH)\)[^\[]*\[(.*)\]", dump)
    return paths[0] if paths else "", re.findall(r"\(NEEDED\)[^\[]*\[(.*)\]", dump)


def _movable(library):
    """The bytes of a library that finds the others of its wheel and PyTorch's beside itself, and those of the system.
    Folders of the build are left out."""
    paths = _read_dynamic(library)[0]
    system = [path for path in paths.split(":") if path.startswith("/usr/")]
    new = ":".join(["$ORIGIN", "$ORIGIN/../torch/lib", *system])
    with tempfile.TemporaryDirectory() as work:
        copy, script = Path(work) / "library.so", Path(work) / "change.cmake"
        copy.write_bytes(library.read_bytes())
        # As CMake changes libraries that it installs. The new text is the shorter one.
        script.write_text(f'file(RPATH_CHANGE FILE "{copy}" OLD_RPATH [==[{paths}]==] NEW_RPATH [==[{new}]==])\n')
        subprocess.run(["cmake", "-P", script], check=True)
        return copy.read_bytes()


def _of_the_system(libraries):
    """What the machine needs beside PyTorch: the names of libraries that are neither in the wheel nor in PyTorch."""
    there = {path.name for path in libraries} | {path.name for path in (_torch() / "lib").iterdir()}
    basic = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|gomp))\.so.*")
    names = {name for library in libraries for name in _read_dynamic(library)[1]}
    return sorted(name for name in names - there if not basic.fullmatch(name))


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    folder, version = _build(), _version()
    tags = f"{_tag()}-{_tag()}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    info = f"moonhalo-{version}.dist-info"
    module = folder / "python/moonhalo" / f"_moonhalo{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not module.exists():
        sys.exit(
            f"moonhalo: the build is for another Python\n  have  {folder}, no {module.name}\n  fix   give another"
            " folder as MOONHALO_BUILD"
        )
    libraries = [module, folder / "lib/libmoonhalo.so.0"]
    built_for = (folder / "python/moonhalo/_built_for.py").read_bytes()
    metadata = [
        "Metadata-Version: 2.1",
        "Name: moonhalo",
        f"Version: {version}",
        f"Requires-Dist: torch=={built_for.decode().split(chr(34))[1]}",
        *(f"Requires-External: {name}" for name in _of_the_system(libraries)),
    ]
    files = {
        **{
            f"moonhalo/{file.name}": file.read_bytes()
            for file in sorted((SOURCE / "scripting/python/moonhalo").glob("*.*"))
        },
        "moonhalo/_built_for.py": built_for,
        **{f"moonhalo/{library.name}": _movable(library) for library in libraries},
        f"{info}/METADATA": ("\n".join(metadata) + "\n").encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: moonhalo\nRoot-Is-Purelib: false\nTag: {tags}\n".encode(),
    }
    digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    record = [f"{name},sha256={digest(data)},{len(data)}" for name, data in files.items()] + [f"{info}/RECORD,,"]
    files[f"{info}/RECORD"] = ("\n".join(record) + "\n").encode()
    name = f"moonhalo-{version}-{tags}.whl"
    with zipfile.ZipFile(Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)
    return name


def build_sdist(sdist_directory, config_settings=None):
    sys.exit("moonhalo: no source packages; install from a clone")


if __name__ == "__main__":
    made = Path(sys.argv[1]) / build_wheel(sys.argv[1])
    with zipfile.ZipFile(made) as wheel:
        needs = re.findall(
            "^Requires-External: (.*)$",
            wheel.read(next(name for name in wheel.namelist() if name.endswith("METADATA"))).decode(),
            re.MULTILINE,
        )
    print(f"{made} ({made.stat().st_size / 2**20:.1f} MB); of the system it needs {' '.join(needs)}")
