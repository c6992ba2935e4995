"""Makes the wheels of toolmesh in a folder: `wheels.py DIST [GOOS/GOARCH…]`.

One is pure, the others carry the mesh binary of a platform, which is linked statically. The same sources give the
same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
PLATFORMS = {
    "linux/amd64": "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64",
    "linux/arm64": "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
    "darwin/amd64": "macosx_12_0_x86_64",
    "darwin/arm64": "macosx_12_0_arm64",
}
TIME = (1980, 1, 1, 0, 0, 0)


def pure(dist: pathlib.Path) -> pathlib.Path:
    """The wheel without a binary."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps",
                        "--wheel-dir", folder, str(HERE)], check=True,
                       env={**os.environ, "SOURCE_DATE_EPOCH": "315532800"})
        (made,) = pathlib.Path(folder).glob("*.whl")
        target = dist / made.name
        target.write_bytes(made.read_bytes())
    return target


def built(platform: str, version: str) -> bytes:
    """The binary of a platform."""
    system, machine = platform.split("/")
    with tempfile.TemporaryDirectory() as folder:
        binary = pathlib.Path(folder) / "mesh"
        subprocess.run(
            ["go", "build", "-trimpath", "-buildvcs=false", "-o", str(binary),
             f"-ldflags=-s -w -X main.version={version}", "./cmd/mesh"],
            check=True, cwd=HERE.parent, env={**os.environ, "GOOS": system, "GOARCH": machine, "CGO_ENABLED": "0"})
        return binary.read_bytes()


def carrying(wheel: pathlib.Path, platform: str, binary: bytes) -> pathlib.Path:
    """The wheel with the binary of a platform."""
    tags = PLATFORMS[platform]
    target = wheel.with_name(wheel.name.replace("py3-none-any", f"py3-none-{tags}"))
    files = {f"{'-'.join(wheel.name.split('-')[:2])}.data/scripts/mesh": binary}
    with zipfile.ZipFile(wheel) as read:
        for name in read.namelist():
            files[name] = read.read(name)
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    about = record.replace("RECORD", "WHEEL")
    lines = [line for line in files[about].decode().splitlines() if line and not line.startswith(("Tag:", "Root-Is-"))]
    lines += ["Root-Is-Purelib: false", *[f"Tag: py3-none-{tag}" for tag in tags.split(".")]]
    files[about] = ("\n".join(lines) + "\n").encode()
    del files[record]
    said = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as write:
        for name, data in sorted(files.items()):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            said.append(f"{name},sha256={digest},{len(data)}")
            add(write, name, data)
        add(write, record, ("\n".join([*said, f"{record},,"]) + "\n").encode())
    return target


def add(write: zipfile.ZipFile, name: str, data: bytes) -> None:
    """Adds a file, a program if it is one."""
    entry = zipfile.ZipInfo(name, TIME)
    entry.external_attr = (0o100755 if name.endswith("/scripts/mesh") else 0o100644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    write.writestr(entry, data)


def main() -> None:
    """Makes all wheels, or those of some platforms."""
    dist = pathlib.Path(sys.argv[1])
    dist.mkdir(parents=True, exist_ok=True)
    wheel = pure(dist)
    for platform in sys.argv[2:] or PLATFORMS:
        carrying(wheel, platform, built(platform, wheel.name.split("-")[1]))
    sys.stdout.write("".join(f"{one}\n" for one in sorted(dist.glob("*.whl"))))


if __name__ == "__main__":
    main()
