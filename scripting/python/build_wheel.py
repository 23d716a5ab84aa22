# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel of `pip install .` (PEP 517), which takes HDF5, Lua and MPI from this machine, and that of
`./dev wheel` (build_wheel.py FOLDER), which brings them along (wheel_libraries.py). CMake makes the library, the module
and the program for the PyTorch of the environment that pip installs into. MOONHALO_BUILD=<a build folder> goes on with
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

from wheel_libraries import Bundle, missing, read_dynamic, to_package

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
    subprocess.run(["cmake", "--build", folder, "--target", "moonhalo_python", "moonhalo_cli"], check=True)
    return folder


def _version():
    return re.search(r"project\(moonhalo VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())[1]


def _movable(library, package):
    """The bytes of a library that finds the others of its wheel and PyTorch's beside itself, and those of the system.
    Folders of the build are left out. `package`: of to_package."""
    paths = read_dynamic(library)[0]
    system = [path for path in paths.split(":") if path.startswith("/usr/")]
    new = ":".join([package, f"{package}/../torch/lib", *system])
    with tempfile.TemporaryDirectory() as work:
        copy, script = Path(work) / "library.so", Path(work) / "change.cmake"
        copy.write_bytes(library.read_bytes())
        # As CMake changes libraries that it installs. The new text is the shorter one.
        script.write_text(f'file(RPATH_CHANGE FILE "{copy}" OLD_RPATH [==[{paths}]==] NEW_RPATH [==[{new}]==])\n')
        subprocess.run(["cmake", "-P", script], check=True)
        return copy.read_bytes()


def _ours(folder, for_others):
    """What is compiled, as {name in the wheel: file}. A wheel for other machines loads MPI where there is one."""
    files = {
        f"moonhalo/_moonhalo{sysconfig.get_config_var('EXT_SUFFIX')}": "python/moonhalo",
        "moonhalo/bin/moonhalo": "bin",
    }
    with_mpi = for_others and (folder / "wheel/libmoonhalo_mpi.so").exists()
    files["moonhalo/libmoonhalo.so.0"] = "wheel" if with_mpi else "lib"
    if with_mpi:
        files["moonhalo/libmoonhalo_mpi.so"] = "wheel"
    found = {name: folder / place / Path(name).name for name, place in files.items()}
    for file in found.values():
        if not file.exists():
            sys.exit(
                f"moonhalo: the build is for another Python, or not complete\n  have  {folder}, no {file.name}\n  fix  "
                " build there, or give another folder as MOONHALO_BUILD"
            )
    return found


def _foreign(ours, folder, info):
    """Makes ours fit for other machines. Returns (files, the part of the tag that names the platform, lines)."""
    bundle = Bundle(ours, _torch(), folder / "wheel/libmoonhalo_no_network.so")
    files = bundle.files()
    glibc, libstdcxx = bundle.audit(files)
    files |= {f"{info}/licenses/{name}.txt": text for name, text in bundle.licenses.items()}
    lines = [
        f"carries {' '.join(sorted(bundle.foreign))}",
        f"needs glibc {'.'.join(map(str, glibc))} and libstdc++ with GLIBCXX_{'.'.join(map(str, libstdcxx))}",
    ]
    return files, f"manylinux_{glibc[0]}_{glibc[1]}_{os.uname().machine}", lines


def _in_place(ours):
    """Takes what ours need from this machine."""
    needs = {name for file in ours.values() for name in read_dynamic(file)[1]}
    files = {name: _movable(file, to_package(name)) for name, file in ours.items()}
    lines = [f"needs {' '.join(missing(needs, ours.values(), _torch()))}"]
    return files, sysconfig.get_platform().replace("-", "_").replace(".", "_"), lines


def _texts(folder, version, tags, info):
    """What is not compiled."""
    built_for = (folder / "python/moonhalo/_built_for.py").read_bytes()
    metadata = [
        "Metadata-Version: 2.1",
        "Name: moonhalo",
        f"Version: {version}",
        "Summary: Domain-parallel tensors on PyTorch",
        "License: Apache-2.0",
        "Requires-Python: >=3.10",
        f"Requires-Dist: torch=={built_for.decode().split(chr(34))[1]}",
    ]
    return {
        **{
            f"moonhalo/{file.name}": file.read_bytes()
            for file in sorted((SOURCE / "scripting/python/moonhalo").glob("*.*"))
        },
        "moonhalo/_built_for.py": built_for,
        **{
            f"moonhalo/share/moonhalo/machines/{file.name}": file.read_bytes()
            for file in sorted((SOURCE / "configs/machines").glob("*.json"))
        },
        f"moonhalo-{version}.data/scripts/moonhalo": (SOURCE / "scripting/python/moonhalo_program.py").read_bytes(),
        f"{info}/licenses/LICENSE": (SOURCE / "LICENSE").read_bytes(),
        f"{info}/METADATA": ("\n".join(metadata) + "\n").encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: moonhalo\nRoot-Is-Purelib: false\nTag: {tags}\n".encode(),
    }


def _write(wheel_directory, for_others):
    """Returns the wheel's name, and what it says of libraries."""
    folder, version = _build(), _version()
    ours = _ours(folder, for_others)
    info = f"moonhalo-{version}.dist-info"
    compiled, platform, lines = _foreign(ours, folder, info) if for_others else _in_place(ours)
    tags = f"{_tag()}-{_tag()}-{platform}"
    files = _texts(folder, version, tags, info) | compiled
    digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    record = [f"{name},sha256={digest(data)},{len(data)}" for name, data in files.items()] + [f"{info}/RECORD,,"]
    files[f"{info}/RECORD"] = ("\n".join(record) + "\n").encode()
    name = f"moonhalo-{version}-{tags}.whl"
    with zipfile.ZipFile(Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, date_time=(1980, 1, 1, 0, 0, 0))
            runs = path in ours or ".data/scripts/" in path
            entry.external_attr = (0o100755 if runs else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    return name, lines


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _write(wheel_directory, for_others=False)[0]


def build_sdist(sdist_directory, config_settings=None):
    sys.exit("moonhalo: no source packages; install from a clone")


if __name__ == "__main__":
    made, of_libraries = _write(sys.argv[1], for_others=True)
    made = Path(sys.argv[1]) / made
    print(f"{made} ({made.stat().st_size / 2**20:.1f} MB)", *of_libraries, sep="\n  ")
