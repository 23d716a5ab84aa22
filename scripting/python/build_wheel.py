# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel of `pip install .` (PEP 517): CMake makes the library and the module for the PyTorch of the
environment that pip installs into. MOONHALO_BUILD=<a build folder> goes on with that one; where it has the module
already, it is taken as it is: another process may be building there, and two at once spoil each other's files."""

import base64
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
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
    files = {
        **{
            f"moonhalo/{file.name}": file.read_bytes()
            for file in sorted((SOURCE / "scripting/python/moonhalo").glob("*.*"))
        },
        f"moonhalo/{module.name}": module.read_bytes(),
        "moonhalo/libmoonhalo.so.0": (folder / "lib/libmoonhalo.so.0").read_bytes(),
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: moonhalo\nVersion: {version}\nRequires-Dist: torch\n".encode()
        ),
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
