"""Files that are saved: modes, owners, links, and what is no plain file."""

import os
import pathlib
import stat
import subprocess
import sys
import threading

import pytest

from toolmesh._client import payloads


@pytest.fixture(autouse=True)
def _umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


def save(path: pathlib.Path, data: bytes = b"after") -> None:
    with payloads._replacing(str(path)) as out:
        out.write(data)


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o755])
@pytest.mark.parametrize("linked", [False, True])
def test_an_existing_file_keeps_its_mode_and_owner(tmp_path, mode, linked) -> None:
    real = tmp_path / "real"
    real.write_bytes(b"before")
    real.chmod(mode)
    if os.geteuid() == 0:
        os.chown(real, 12345, 12345)
    path = tmp_path / "link" if linked else real
    if linked:
        path.symlink_to("real")
    save(path)
    told = real.stat()
    assert real.read_bytes() == b"after" and stat.S_IMODE(told.st_mode) == mode
    assert told.st_uid == (12345 if os.geteuid() == 0 else os.geteuid())
    assert path.is_symlink() is linked and len(list(tmp_path.iterdir())) == 1 + linked


def test_a_new_file_has_what_the_umask_leaves(tmp_path) -> None:
    save(tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


@pytest.mark.parametrize("there", [False, True])
def test_no_half_file_is_left(tmp_path, there) -> None:
    path = tmp_path / "x"
    if there:
        path.write_bytes(b"before")
    with pytest.raises(ConnectionError), payloads._replacing(str(path)) as out:
        out.write(b"half")
        raise ConnectionError
    assert [one.name for one in tmp_path.iterdir()] == ["x"] * there
    assert not there or path.read_bytes() == b"before"


def test_a_full_disk_leaves_the_old_file(tmp_path) -> None:
    """A limit on the size of files stands for the full disk: what is written over it is an OSError."""
    path = tmp_path / "x"
    path.write_bytes(b"before")
    code = """
import resource, signal, sys
from toolmesh._client import payloads
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
with payloads._replacing(sys.argv[1]) as out:
    for _ in range(64):
        out.write(bytes(1 << 12))
"""
    source = pathlib.Path(payloads.__file__).parents[2]
    told = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(source)})
    assert told.returncode == 1 and "File too large" in told.stderr
    assert path.read_bytes() == b"before" and [one.name for one in tmp_path.iterdir()] == ["x"]


def test_readers_of_a_file_that_is_replaced_keep_the_old_one(tmp_path) -> None:
    """Nothing is written to the file that is there: a full disk, or the end of the program, leaves no half of it."""
    path = tmp_path / "x"
    path.write_bytes(b"before")
    with path.open("rb") as reader:
        save(path)
        assert reader.read() == b"before" and path.read_bytes() == b"after"


@pytest.mark.parametrize("folder", [False, True])
def test_a_file_that_cannot_be_replaced_is_overwritten(tmp_path, monkeypatch, folder) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"before, and longer")
    inode = path.stat().st_ino

    def refused(*_):
        raise PermissionError

    if folder:  # of another user, as far as the client sees: root may write all
        may = os.access
        monkeypatch.setattr(os, "access", lambda one, mode: one != str(tmp_path) and may(one, mode))
    else:
        monkeypatch.setattr(os, "chown", refused)
    save(path)
    assert path.read_bytes() == b"after" and path.stat().st_ino == inode
    assert len(list(tmp_path.iterdir())) == 1


def test_devices_and_pipes_are_written_to(tmp_path) -> None:
    save(pathlib.Path(os.devnull))
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="pipe"):
        save(pipe)  # which nobody reads
    reader = os.open(pipe, os.O_RDWR)  # it has no end before there is a writer
    data = os.urandom(1 << 20)  # more than a pipe holds
    got = bytearray()

    def read() -> None:
        while len(got) < len(data):
            got.extend(os.read(reader, 1 << 16))

    thread = threading.Thread(target=read)
    thread.start()
    save(pipe, data)
    thread.join()
    os.close(reader)
    assert got == data


def test_a_dangling_link_and_a_folder_are_refused(tmp_path) -> None:
    (tmp_path / "link").symlink_to("gone")
    for path in (tmp_path / "link", tmp_path):
        with pytest.raises(OSError, match=str(path)):
            save(path)
    assert not (tmp_path / "gone").exists()
