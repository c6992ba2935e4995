"""The sandbox levels, from inside: they bound what the processes of an index may touch.

The agent makes the namespaces; the rest is done here, by the zygote before it takes anything of the index, and
inherited by everything it forks and starts:

none     nothing
guard    no new privileges, few capabilities, no core files, an own /proc; of the
         agent's files only what it needs; a user of its own, where the agent is root
strict   no capabilities at all; the file system is read-only but for one folder;
         system calls that reach into other processes or the kernel are refused
offline  strict, in a network of its own that has nothing but its loopback

Where the agent can make no namespaces, what needs none holds of guard and strict: of the agent's files, too (_around).

Each worker adds a domain of its own: it can signal and inspect only what it started. A level that cannot be
had raises Refused: nothing runs then.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import resource
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence

from . import filters

NONE, GUARD, STRICT, OFFLINE = "none", "guard", "strict", "offline"
WRITE, READ, SEE, OWN = "w", "r", "s", "o"
REAPER = "reaper"  # the agent's mode for machines without namespaces


class Refused(Exception):
    """The machine lacks a feature that the level requires."""


def confine(level: str, kept: str, folder: str, user: Sequence[int], given: Sequence[tuple[str, str]]) -> list[str]:
    """Confines this process and its children to come, before any code of the index runs: that of start-up files of
    its environment, too. Returns what the level can do without and the machine refuses.

    kept says how the agent keeps us together; folder is what strict and offline may write; user is as for become, empty
    to stay who we are; given are folders and what of them the user is to have: WRITE and READ as their owner, OWN and
    SEE (to read alone) as their modes say. Of the agent's folder nothing else is seen.
    """
    if level not in (NONE, GUARD, STRICT, OFFLINE):
        raise Refused("there is no such level")
    if level == NONE or sys.platform != "linux":
        if level in (STRICT, OFFLINE):
            raise Refused(f"the sandbox level {level} needs Linux")
        become(user)
        return []
    notes: list[str] = []
    _own_keyring()
    if kept != REAPER:
        _mounts(notes)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if _prctl(_NO_NEW_PRIVS, 1) != 0:
        raise Refused(f"no_new_privs: {_error()}")
    strict = level in (STRICT, OFFLINE)
    writable = [path for path, access in given if access == WRITE]
    if kept == REAPER:
        _around(given)
    else:
        _folders([_given(path, access, user) for path, access in given], bool(user), strict)
        if strict and os.path.isdir("/dev/shm"):
            # Locks and shared memory of multiprocessing live there.
            if not _mount("tmpfs", "/dev/shm", "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "size=64m,mode=1777"):
                notes.append(f"no /dev/shm of its own: {_error()}")
        if strict and not _only([folder, "/dev/shm", *writable]):
            notes.append(f"modes, owners and times of files can be changed: {_error()}")
        if level == OFFLINE:
            _loopback()
    _drop_capabilities(_KEPT if level == GUARD else _TO_BECOME if user else ())
    become(user)
    if strict:
        _read_only([folder, *writable])
    mapped, truncate = bool(user and writable), kept != REAPER or _abi() >= 3
    if strict or mapped or not truncate:
        _filter(strict, level == OFFLINE, mapped, truncate)
    undumpable(level)
    if _abi() < 1:
        notes.append("no Landlock here: workers of one index can signal each other")
    return notes


def undumpable(level: str) -> None:
    """Without domains, at least the memory of workers is unreadable. A started program is readable again."""
    if level != NONE and sys.platform == "linux" and _abi() < 1:
        _prctl(_SET_DUMPABLE, 0)


_domain = -1  # a ruleset for workers, made by prepare


def prepare(level: str) -> None:
    """Prepares the common part of all workers, before the first fork."""
    global _domain
    if sys.platform != "linux" or level == NONE or _abi() < 1 or _domain >= 0:
        return
    # A domain that handles rights of files prevents moving files between folders, in all domains inside it, too.
    # This one handles none.
    handled = _REFER if _abi() >= 2 else 0
    if _abi() >= 6:
        made = _create_ruleset(_packed(handled, 0, _SCOPE_SIGNAL))
    else:
        # A domain needs something to handle. Its existence matters: code inside it cannot inspect processes
        # outside.
        made = _create_ruleset(_packed(_MAKE_BLOCK | handled))
    if handled:
        _allow(made, "/", handled)
    _domain = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 200)  # above the descriptors that tools open
    os.close(made)


def domain(level: str) -> None:
    """From now on this process can signal and inspect only itself and the processes that it starts. Each call makes a
    new domain, all from the same ruleset."""
    global _domain
    prepare(level)
    if _domain >= 0:
        ruleset, _domain = _domain, -1
        _restrict(ruleset)


def become_subreaper() -> None:
    """Orphaned descendants become children of this process (Linux)."""
    if sys.platform == "linux":
        _prctl(_SET_CHILD_SUBREAPER, 1)


# System calls.

_NO_NEW_PRIVS = 38
_SET_CHILD_SUBREAPER = 36
_SET_DUMPABLE = 4
_SET_SECCOMP = 22
_CAPBSET_DROP = 24
_CAP_AMBIENT = 47
_CAP_AMBIENT_CLEAR_ALL = 4


@functools.cache
def _c() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, *4 * (ctypes.c_ulong,)]
    libc.syscall.restype = ctypes.c_long
    return libc


def _error() -> str:
    return os.strerror(ctypes.get_errno())


def _prctl(option: int, value: int, third: int = 0) -> int:
    found: int = _c().prctl(option, value, third, 0, 0)
    return found


def _syscall(number: int, *arguments: object) -> int:
    found: int = _c().syscall(ctypes.c_long(number), *arguments)
    return found


# Namespaces: mounts and network.

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 16384, 1 << 18
_MS_READ_ONLY, _MS_REMOUNT, _MS_BIND = 1, 32, 4096
# Flags that a remount must repeat, by their names in /proc/self/mountinfo.
_MS_NAMES = {
    "nosuid": _MS_NOSUID,
    "nodev": _MS_NODEV,
    "noexec": _MS_NOEXEC,
    "noatime": 1024,
    "nodiratime": 2048,
    "relatime": 1 << 21,
}


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> bool:
    done: int = _c().mount(
        os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode() if data else None
    )
    return done == 0


def _mounts(notes: list[str]) -> None:
    """Mounts a /proc with only our own processes: the environment of others may have secrets."""
    # No mount may propagate to the machine.
    if _c().unshare(ctypes.c_int(_NEW_MOUNTS)) != 0 or not _mount("none", "/", "", _MS_REC | _MS_PRIVATE):
        raise Refused(f"no mounts of its own: {_error()}")
    if not _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC):
        notes.append(f"no /proc of its own: {_error()}")
    _system_read_only(notes)


# A file that the agent wrote next to this package: its own folder, whether indexes have their own users, and the
# folder of this package, which is inside the first.
_FOLDERS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "folders")


# Of systemd: sockets of D-Bus, ssh-agent and others, which start programs and sign on request.
_SESSIONS = "/run/user"


class _Tree:
    """A folder to be shown at its path."""

    def __init__(self, path: str, write: bool, fd: int, mounted: bool = False) -> None:
        self.path, self.write, self.fd = path, write, fd
        self.mounted = mounted  # fd is a mount of its own, with its flags


def _shown() -> list[str]:
    try:
        with open(_FOLDERS, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().split("\0")
    except OSError:
        return []


def _folders(given: list[_Tree], foreign: bool, strict: bool) -> None:
    """Reduces the agent's folder to what an index needs. The rest of the index's life depends on this mount. The given
    folders are shown, too, even where their user could not reach them: foreign says that the index has its own user. In
    strict mode nothing else of users' sessions is visible."""
    if not (shown := _shown()):
        return
    sealed, others, files = shown
    here = os.getcwd()
    covers: dict[str, list[_Tree]] = {_SESSIONS: []} if strict and os.path.isdir(_SESSIONS) else {}

    def over(path: str) -> str:
        return _SESSIONS if _SESSIONS in covers and path.startswith(_SESSIONS + "/") else path

    whole = over(_blocks(sealed) if others else sealed)
    covers.setdefault(whole, []).append(_at(files))
    interpreter = os.path.realpath(sys.base_prefix)
    if (closed := over(_blocks(interpreter) if others else interpreter)) != interpreter:
        covers.setdefault(closed, []).append(_at(interpreter))
    for tree in given:
        inside = tree.path.startswith(sealed + "/")
        covers.setdefault(whole if inside else over(_blocks(tree.path) if foreign else tree.path), []).append(tree)
    for cover in sorted(covers):
        _show(cover, sorted(covers[cover], key=lambda tree: tree.path))
    os.chdir(here)  # the reduced folder


def _at(path: str) -> _Tree:
    return _Tree(path, False, os.open(path, os.O_PATH | os.O_CLOEXEC))


def _blocks(path: str) -> str:
    """The first folder on the way to path that other users cannot enter, or path."""
    for end in range(1, len(path)):
        if path[end] == "/" and not os.stat(path[:end]).st_mode & 0o001:
            return path[:end]
    return path


def _show(cover: str, trees: list[_Tree]) -> None:
    """Hides everything in a folder except the trees below it."""
    empty, whole = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, any(tree.path == cover for tree in trees)
    if not whole:
        _must_mount("tmpfs", cover, "tmpfs", empty, "mode=755,size=1m")
    for tree in trees:
        os.makedirs(tree.path, exist_ok=True)
        if tree.mounted:
            to = ctypes.c_int(_AT_CWD), os.fsencode(tree.path), ctypes.c_uint(4)  # MOVE_MOUNT_F_EMPTY_PATH
            if _syscall(_MOVE_MOUNT, ctypes.c_int(tree.fd), b"", *to) != 0:
                raise Refused(f"{tree.path} cannot be mounted: {_error()}")
        else:
            _must_mount(f"/proc/self/fd/{tree.fd}", tree.path, "", _MS_BIND | _MS_REC)
        os.close(tree.fd)
        if not (tree.mounted or tree.write):
            flags = os.statvfs(tree.path).f_flag & (empty | 1024 | 2048)  # a remount repeats them
            _must_mount("none", tree.path, "", _MS_REMOUNT | _MS_BIND | _MS_READ_ONLY | flags)
    if not whole:
        _must_mount("none", cover, "", _MS_REMOUNT | _MS_BIND | _MS_READ_ONLY | empty)


# Folders of other users: mounted so that files of their owner belong to the user, and new files to their owner.
# Linux 5.12, on most file systems.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # on every architecture
_AT_CWD, _AT_EMPTY, _AT_RECURSIVE = -100, 0x1000, 0x8000
_ATTR_READ_ONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_IDMAP = 1, 2, 4, 0x100000
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x20000


def _reach(path: str) -> int:
    """A descriptor of a folder at a path without links: a user with write access on the way could have made a link
    meanwhile."""
    at = os.open("/", os.O_PATH | os.O_CLOEXEC)
    for name in path.split("/")[1:]:
        above = at
        try:
            at = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        except OSError as failure:
            raise Refused(f"{path} cannot be given: {failure}") from failure
        finally:
            os.close(above)
        if not _is_folder(os.fstat(at)):
            raise Refused(f"{path} leads elsewhere than when it was given: install the index again")
    return at


def _is_folder(info: os.stat_result) -> bool:
    return info.st_mode & 0o170000 == 0o040000


def _given(path: str, access: str, user: Sequence[int]) -> _Tree:
    at, write = _reach(path), access in (WRITE, OWN)
    if not user or access in (SEE, OWN):
        return _Tree(path, write, at)
    uid, gid = user
    flags = ctypes.c_uint(1 | os.O_CLOEXEC | _AT_EMPTY | _AT_RECURSIVE)  # OPEN_TREE_CLONE
    fd = _syscall(_OPEN_TREE, ctypes.c_int(at), b"", flags)
    if fd < 0:
        raise Refused(f"{path} cannot be given: {_error()}")
    found = os.fstat(at)
    os.close(at)
    wanted = _ATTR_NOSUID | _ATTR_NODEV | (0 if write else _ATTR_READ_ONLY)
    if found.st_uid != uid:
        mapping = _mapping(found.st_uid, found.st_gid, uid, gid)
        mapped = _attributes(fd, "", wanted | _ATTR_IDMAP, 0, _AT_EMPTY | _AT_RECURSIVE, mapping)
        why = _error()
        os.close(mapping)
        if mapped:
            return _Tree(path, write, fd, True)
        needed = 0o7 if write else 0o5
        if found.st_mode & needed != needed:
            raise Refused(
                f"{path} is another user's, and its file system cannot show it as anybody else's ({why}): "
                f"chown it to {uid}, or have tools run as its owner (MESH_WORKER_USER)"
            )
    if not _attributes(fd, "", wanted, 0, _AT_EMPTY | _AT_RECURSIVE):
        raise Refused(f"{path} cannot be given: {_error()}")
    return _Tree(path, write, fd, True)


def _attributes(at: int, path: str, put: int, taken: int = 0, flags: int = _AT_RECURSIVE, mapping: int = 0) -> bool:
    """Sets flags of a mount and of all mounts below it; False if that is impossible. Needs Linux 5.12."""
    attributes = _packed(put, taken, 0, mapping)
    of = ctypes.c_int(at), os.fsencode(path), ctypes.c_uint(flags)
    return _syscall(_MOUNT_SETATTR, *of, attributes, ctypes.c_size_t(len(attributes))) == 0


def _mapping(owner: int, group: int, uid: int, gid: int) -> int:
    """A user namespace that maps the owner's files to the user. It lives as long as its descriptor and its mounts."""
    ready_r, ready_w = os.pipe()
    done_r, done_w = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(done_w)
        os.write(ready_w, b"y" if _c().unshare(ctypes.c_int(_NEW_USER)) == 0 else b"n")
        os.read(done_r, 1)
        os._exit(0)
    try:
        if os.read(ready_r, 1) != b"y":
            raise Refused("no user namespace can be made")
        for name, line in ("uid_map", f"{owner} {uid} 1"), ("gid_map", f"{group} {gid} 1"):
            with open(f"/proc/{child}/{name}", "w", encoding="ascii") as file:
                file.write(line)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as failure:
        raise Refused(f"a folder of the user {owner} cannot be given to {uid}: {failure}") from failure
    finally:
        for fd in (ready_r, ready_w, done_r, done_w):
            os.close(fd)
        os.waitpid(child, 0)


def _must_mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    if not _mount(source, target, kind, flags, data):
        raise Refused(f"{target} cannot be mounted: {_error()}")


# Files through which root could change the system despite dropped capabilities: settings of the kernel and its view
# of devices. Control groups bound the memory of workers, and a tool could raise that bound.
_SYSTEM = (
    "cgroup", "cgroup2", "sysfs", "debugfs", "tracefs", "securityfs", "efivarfs", "configfs", "bpf", "binfmt_misc",
)
_OF_PROC = ("sys", "sysrq-trigger", "irq", "bus", "fs")


def _system_read_only(notes: list[str]) -> None:
    """Makes files of the system read-only: a tool with the agent's user could write them as the agent can."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    usual = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    points = [(f"/proc/{name}", usual, True) for name in _OF_PROC if os.geteuid() == 0]
    below = _attributes(_AT_CWD, "/sys", _ATTR_READ_ONLY)  # one call instead of twelve
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if after.split(" ")[0] not in _SYSTEM or len(fields) < 6:
            continue
        point, options = fields[4].replace("\\040", " "), fields[5].split(",")
        if below and (point + "/").startswith("/sys/"):
            continue
        if "ro" not in options:
            points.append((point, sum(flag for name, flag in _MS_NAMES.items() if name in options), False))
    for point, flags, inside in points:  # a folder inside a mount becomes a mount first
        if inside and not os.path.exists(point):
            continue
        bound = not inside or _mount(point, point, "", _MS_BIND | _MS_REC)
        if not (bound and _mount("none", point, "", _MS_REMOUNT | _MS_BIND | _MS_READ_ONLY | flags)):
            notes.append(f"{point} can be written: {_error()}")


def _only(writable: list[str]) -> bool:
    """Makes everything else read-only: Landlock does not handle modes, owners, times and attributes. Linux 5.12."""
    writable = [path for path in writable if os.path.isdir(path) and not os.statvfs(path).f_flag & os.ST_RDONLY]
    for path in writable:
        _must_mount(path, path, "", _MS_BIND | _MS_REC)
    if not _attributes(_AT_CWD, "/", _ATTR_READ_ONLY):
        return False
    for path in writable:
        if not _attributes(_AT_CWD, path, 0, _ATTR_READ_ONLY, 0):
            raise Refused(f"{path} cannot be written: {_error()}")
    os.chdir(os.getcwd())  # its writable mount
    return True


def _loopback() -> None:
    import _socket

    try:
        with_address = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
        try:
            fcntl.ioctl(with_address.fileno(), 0x8914, struct.pack("16sh22x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS, UP
        finally:
            with_address.close()
    except OSError as failure:
        raise Refused(f"the network of its own has no loopback: {failure}") from failure


# Privileges.

# Capabilities that guard leaves to a root user: to own, read and write files of any user, to become another user,
# to bind low ports. None of them reaches the kernel, other processes, devices or the network's configuration.
_KEPT = (0, 1, 3, 4, 5, 6, 7, 10)  # CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID NET_BIND_SERVICE
_TO_BECOME = (6, 7)  # SETGID SETUID


def become(user: Sequence[int]) -> None:
    """Makes this process that user (user id, group id), without capabilities. Empty: it keeps its user."""
    if not user:
        return
    uid, gid = user
    for path in os.path.realpath(sys.base_prefix), os.getcwd():
        if (closed := _blocks(path)) != path:
            raise Refused(f"{path} is needed, and no other user passes {closed}: move it, or set MESH_WORKER_USER=root")
    _prctl(_NO_NEW_PRIVS, 1)
    try:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    except OSError as failure:
        raise Refused(f"the process cannot become the user {uid}: {failure}") from failure
    if _abi() >= 1:
        _prctl(_SET_DUMPABLE, 1)  # else root would own its files in /proc


def _own_keyring() -> None:
    """Joins a new session keyring: the agent's may hold keys (of a file system, of Kerberos) for all processes of its
    session keyring."""
    column, _ = filters.AUDIT.get(os.uname().machine, (-1, 0))
    if column >= 0:
        join = ctypes.c_int(1)  # KEYCTL_JOIN_SESSION_KEYRING, a new one; refused by a kernel that has none
        _syscall(filters.DENIED["keyctl"][column], join, None)


def _drop_capabilities(kept: Iterable[int]) -> None:
    kept = tuple(kept)
    for capability in range(64):  # the size of the kernel's sets
        if capability not in kept:
            _prctl(_CAPBSET_DROP, capability)  # fails for capabilities that are not held
    _prctl(_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL)
    reduce_capabilities(kept)


def reduce_capabilities(kept: Iterable[int]) -> None:
    """Drops all capabilities of this process except those in kept."""
    mask = 0
    for capability in kept:
        mask |= 1 << capability
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    if _c().capget(header, data) != 0:
        raise Refused(f"capabilities cannot be read: {_error()}")
    low, high = mask & 0xFFFFFFFF, mask >> 32
    for at, part in ((0, low), (3, high)):
        data[at] &= part  # effective
        data[at + 1] &= part  # permitted
        data[at + 2] = 0  # inheritable
    if _c().capset(header, data) != 0:
        raise Refused(f"capabilities cannot be dropped: {_error()}")


# Landlock.

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every architecture
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_MAKE_BLOCK = 1 << 11
_TRUNCATE = 1 << 14
_IOCTL_DEV = 1 << 15
# Remove, make and link of every kind; reading and executing are left alone.
_CHANGES = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))
_REFER = 1 << 13
_SCOPE_ABSTRACT, _SCOPE_SIGNAL = 1, 2
_OF_FILES = _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


@functools.cache
def _abi() -> int:
    """The kernel's version of Landlock; 0 without it."""
    return max(0, _syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def _packed(*values: int) -> bytes:
    return struct.pack(f"={len(values)}Q", *values)


def _create_ruleset(attributes: bytes) -> int:
    ruleset = _syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    if ruleset < 0:
        raise Refused(f"Landlock: {_error()}")
    return ruleset


def _restrict(ruleset: int) -> None:
    try:
        if _syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)) != 0:
            raise Refused(f"Landlock: {_error()}")
    finally:
        os.close(ruleset)


def _handling(rights: int, scopes: int) -> tuple[int, int]:
    """A ruleset without rules, and which of these rights it handles."""
    abi = _abi()
    if abi < 1:
        raise Refused("the kernel has no Landlock")
    for since, right in (2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV):
        if abi < since:
            rights &= ~right
    return _create_ruleset(_packed(rights, 0, scopes) if abi >= 6 else _packed(rights)), rights


def _around(given: Sequence[tuple[str, str]]) -> None:
    """For machines without mounts: from now on only the given folders inside the agent's folder can be read, and only
    those given for writing be changed. A rule of Landlock grants rights and revokes none. So everything next to the way
    to that folder gets them; files created there later have none."""
    if not (shown := _shown()):
        return
    sealed, _, files = shown
    ruleset, handled = _handling(_READ_FILE | _CHANGES | _REFER | _TRUNCATE, _SCOPE_SIGNAL)
    for path in _beside(sealed):
        try:
            _allow(ruleset, path, handled)
        except (OSError, Refused):
            pass  # it was removed
    _allow(ruleset, files, _READ_FILE)
    for path, access in given:
        _allow(ruleset, path, handled if access in (WRITE, OWN) else _READ_FILE, _reach(path))
    _restrict(ruleset)


def _beside(folder: str) -> Iterator[str]:
    """All entries of the folders on the way to a folder, except these and links."""
    way = [folder[:end] or "/" for end in range(len(folder)) if folder[end] == "/"]
    passed = {(info.st_dev, info.st_ino) for info in map(os.stat, [*way, folder])}  # by another name, too
    for above in way:
        try:
            names = os.listdir(above)
        except OSError:
            continue  # unreadable
        for name in names:
            path = os.path.join(above, name)
            try:
                info = os.lstat(path)
            except OSError:
                continue
            if info.st_mode & 0o170000 != 0o120000 and (info.st_dev, info.st_ino) not in passed:
                yield path


def _read_only(folders: Sequence[str]) -> None:
    """From now on only folders, some devices and /dev/shm are writable."""
    ruleset, handled = _handling(_CHANGES | _REFER | _TRUNCATE | _IOCTL_DEV, _SCOPE_ABSTRACT | _SCOPE_SIGNAL)
    for folder in folders:
        _allow(ruleset, folder, handled & ~_IOCTL_DEV)
    if os.path.ismount("/dev/shm"):
        _allow(ruleset, "/dev/shm", handled & ~_IOCTL_DEV)
    for name in _DEVICES:
        try:
            _allow(ruleset, "/dev/" + name, handled & (_WRITE_FILE | _TRUNCATE | _IOCTL_DEV))
        except FileNotFoundError:
            pass
    _restrict(ruleset)


def _allow(ruleset: int, path: str, rights: int, fd: int = -1) -> None:
    """fd is of path, which is opened otherwise."""
    if fd < 0:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not _is_folder(os.fstat(fd)):
            rights &= _OF_FILES
        attributes = struct.pack("=Qi", rights, fd)
        if _syscall(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(1), attributes, ctypes.c_uint32(0)) != 0:
            raise Refused(f"Landlock: {path}: {_error()}")
    finally:
        os.close(fd)


# Seccomp.


def _filter(strict: bool, offline: bool, mapped: bool, truncate: bool) -> None:
    machine = os.uname().machine
    if machine not in filters.AUDIT:
        raise Refused(f"no system call filter is known for {machine}")
    steps = filters.program(machine, strict, offline, mapped, truncate)
    code = b"".join(struct.pack("=HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_void_p)]

    whole = Program(len(steps), ctypes.addressof(buffer))
    if _prctl(_SET_SECCOMP, 2, ctypes.addressof(whole)) != 0:
        raise Refused(f"no system call filter: {_error()}")
