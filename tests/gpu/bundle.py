#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the archive for a machine with a GPU and a Python with PyTorch, from a build of the preset gpu (./dev gpu
bundle).

    bundle.py BUILD_FOLDER SOURCE_FOLDER TORCH_FOLDER ARCHIVE.tar.xz

Programs and the library without symbols, the shared libraries that they need but for glibc, those of GCC, PyTorch and
CUDA, the examples with their data, the tables of device tests and first.sh. Ends with an error where the archive is
larger than 45 MiB."""

import json
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

PROGRAMS = ["moonhalo", "test_gpu", "test_engine", "test_ops", "moonhalo_fuzz", "bench_na", "bench_models"]
LIMIT = 45 * 2**20
# What comes with PyTorch, and what every machine with glibc and GCC's run-time libraries has; libgomp comes with
# LibTorch.
OF_CUDA = re.compile(
    r"^lib(cudart|cupti|nccl|cublas|cublasLt|cudnn|cufft|cufile|curand|cusolver|cusparse|cusparseLt"
    r"|nvJitLink|nvrtc|nvshmem_\w+)\.so"
)
OF_THE_SYSTEM = re.compile(r"^(lib(c|m|dl|rt|pthread|util|resolv|gcc_s|stdc\+\+|gomp)\.so|ld-linux)")


def libraries_of(files, build):
    """The shared libraries that these files need, by name."""
    found = {}
    for file in files:
        text = subprocess.run(["ldd", str(file)], check=True, capture_output=True, text=True).stdout
        for name, path in re.findall(r"^\s*(\S+) => (\S+) \(", text, re.M):
            found[name] = Path(path)
        missing = re.findall(r"^\s*(\S+) => not found", text, re.M)
        if missing:
            sys.exit(f"bundle: {file} needs {missing[0]}, which is not here")
    return {
        name: path
        for name, path in found.items()
        if not OF_THE_SYSTEM.match(name)
        and not OF_CUDA.match(name)
        and "/torch/lib/" not in str(path)
        and build not in path.absolute().parents
    }


def strip(source, target):
    subprocess.run(["strip", "--strip-unneeded", "-o", str(target), str(source)], check=True)
    target.chmod(0o755)


def fill(folder, build, source, torch):
    for name in ("bin", "lib", "tables", "scripts"):
        (folder / name).mkdir()
    programs = [build / "bin" / name for name in PROGRAMS]
    library = build / "lib" / "libmoonhalo.so.0"
    for program in programs:
        strip(program, folder / "bin" / program.name)
    strip(library.resolve(), folder / "lib" / library.name)
    for name, path in libraries_of([*programs, library], build).items():
        strip(path.resolve(), folder / "lib" / name)
    for name in ("device_table.txt", "cuda_table.txt", "device_scripts.txt"):
        shutil.copy(source / "tests/support" / name, folder / "tables" / name)
    for name in ("one_conv.lua", "flex_attention.py"):
        shutil.copy(source / "tests/gpu" / name, folder / "scripts" / name)
    for name in ("first.sh", "first.py", "checks.py"):
        shutil.copy(source / "tests/gpu" / name, folder / name)
    shutil.copytree(
        source / "tests/scripting", folder / "tests/scripting", ignore=shutil.ignore_patterns("*.cpp", "*.h")
    )
    for name in ("examples/channel/convnext.lua", "tests/examples/mlp_plan.lua"):  # that tests in Lua read
        (folder / name).parent.mkdir(parents=True)
        shutil.copy(source / name, folder / name)
    for name in ("climate", "sst"):
        shutil.copytree(
            source / "examples" / name, folder / "examples" / name, ignore=shutil.ignore_patterns("output", "*.png")
        )
    commit = subprocess.run(
        ["git", "-C", str(source), "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    version = re.search(r"__version__ = '([^']+)'", (torch / "version.py").read_text()).group(1)
    manifest = {"torch": version, "commit": commit.stdout.strip() or "unknown", "date": time.strftime("%Y-%m-%d")}
    (folder / "manifest.json").write_text(json.dumps(manifest) + "\n")


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    build, source, torch, archive = (Path(word).absolute() for word in sys.argv[1:])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "moonhalo-gpu"
        folder.mkdir()
        fill(folder, build, source, torch)
        unpacked = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        # The programs hold the same objects: a dictionary as large as they are together finds them again.
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 128 * 2**20}]
        with (
            lzma.open(archive, "wb", format=lzma.FORMAT_XZ, filters=filters) as file,
            tarfile.open(fileobj=file, mode="w|") as tar,
        ):
            tar.add(folder, arcname="moonhalo-gpu")
    size = archive.stat().st_size
    print(f"{archive}: {size / 2**20:.1f} MiB, {unpacked / 2**20:.1f} MiB unpacked")
    if size > LIMIT:
        sys.exit(f"bundle: the archive is larger than {LIMIT // 2**20} MiB")


main()
