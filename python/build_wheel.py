# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel of `pip install .` (PEP 517): CMake makes the library and the module for the PyTorch of the environment that pip
installs into. MOONHALO_BUILD=<a build folder> takes one that is built already, or goes on with it."""
import base64
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent


def _torch():
    for scheme in ("platlib", "purelib"):
        folder = Path(sysconfig.get_path(scheme, vars={"base": sys.prefix, "platbase": sys.prefix})) / "torch"
        if (folder / "lib/libtorch_python.so").exists():
            return folder
    sys.exit(f"moonhalo: PyTorch is not installed here\n  have  {sys.prefix}\n  fix   pip install torch first")


def _build():
    folder = Path(os.environ.get("MOONHALO_BUILD") or SOURCE / "build/python").resolve()
    if not (folder / "build.ninja").exists():
        subprocess.run(["cmake", "-S", SOURCE, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DMOONHALO_TESTS=OFF",
                        f"-DMOONHALO_TORCH={_torch()}"], check=True)
    subprocess.run(["cmake", "--build", folder, "--target", "moonhalo_python"], check=True)
    return folder


def _version():
    return re.search(r"project\(moonhalo VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())[1]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    folder, version = _build(), _version()
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    tags = f"{tag}-{tag}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    info = f"moonhalo-{version}.dist-info"
    module = next((folder / "python/moonhalo").glob("_moonhalo*.so"))
    files = {
        "moonhalo/__init__.py": (SOURCE / "python/moonhalo/__init__.py").read_bytes(),
        f"moonhalo/{module.name}": module.read_bytes(),
        "moonhalo/libmoonhalo.so.0": (folder / "lib/libmoonhalo.so.0").read_bytes(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: moonhalo\nVersion: {version}\nRequires-Dist: torch\n".encode(),
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
