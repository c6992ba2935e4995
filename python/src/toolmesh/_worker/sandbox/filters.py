"""The filter of system calls for the processes of an index, as instructions of seccomp.

levels.py says which process gets which filter.
"""

from __future__ import annotations

# The system calls that strict refuses: (x86_64, aarch64) numbers; -1 if the machine has no such call.
DENIED = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171),
    "bpf": (321, 280), "chroot": (161, 51), "clock_adjtime": (305, 266),
    "clock_settime": (227, 112), "delete_module": (176, 106), "finit_module": (313, 273),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430),
    "fspick": (433, 433), "init_module": (175, 105), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "ioperm": (173, -1),
    "iopl": (172, -1), "kcmp": (312, 272), "kexec_file_load": (320, 294),
    "kexec_load": (246, 104), "keyctl": (250, 219), "mount": (165, 40),
    "mount_setattr": (442, 442), "move_mount": (429, 429), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438), "pivot_root": (155, 41), "process_madvise": (440, 440),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117),
    "quotactl": (179, 60), "reboot": (169, 142), "request_key": (249, 218),
    "setdomainname": (171, 162), "sethostname": (170, 161), "setns": (308, 268),
    "settimeofday": (164, 170), "swapoff": (168, 225), "swapon": (167, 224),
    "syslog": (103, 116), "umount2": (166, 39), "unshare": (272, 97),
    "userfaultfd": (323, 282), "vhangup": (153, 58),
}
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_SOCKET = (41, 198)
# The column of the tables here, and the kernel's number of the machine.
AUDIT = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32 = 0x40000000
_NEW_NAMESPACES = 0x7E020000  # NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET
_FAMILIES = (2, 10, 16)  # INET, INET6, NETLINK: the families that a network namespace confines

_EPERM, _EACCES, _ENOSYS = 1, 13, 38
_LOAD, _EQUAL, _AT_LEAST, _ANY_OF, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


# Calls that set a file's mode: the position of the mode argument, and of the flags that say whether it is used. In
# a given folder a tool may create a file owned by another user: such a file must not become a way to be that user.
_MODES = (
    ((90, -1), 1, -1),  # chmod
    ((91, 52), 1, -1),  # fchmod
    ((268, 53), 2, -1),  # fchmodat
    ((452, 452), 2, -1),  # fchmodat2
    ((85, -1), 1, -1),  # creat
    ((2, -1), 2, 1),  # open
    ((257, 56), 3, 2),  # openat
    ((133, -1), 1, -1),  # mknod
    ((259, 33), 2, -1),  # mknodat
)
_OPENAT2 = (437, 437)
_TRUNCATES = (76, 45)
_SET_ID = 0o6000
_CREATES = 0o100 | 0o20000000  # O_CREAT, O_TMPFILE


def program(machine: str, strict: bool, offline: bool, mapped: bool, truncate: bool) -> list[tuple[int, int, int, int]]:
    """The instructions for a machine of AUDIT: (code, jump if true, jump if false, value). strict and offline select
    the refusals of these levels. mapped says that files of another user can be written. truncate says that files may be
    truncated by name: Landlock controls that from Linux 6.2 on."""
    column, audit = AUDIT[machine]

    def refuse(number: int) -> tuple[int, int, int, int]:
        return _RETURN, 0, 0, _ERRNO | number

    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, audit), refuse(_ENOSYS), (_LOAD, 0, 0, 0)]
    if machine == "x86_64":
        steps += [(_AT_LEAST, 0, 1, _X32), refuse(_ENOSYS)]
    for name, numbers in DENIED.items():
        if numbers[column] >= 0 and (strict or name.startswith("io_uring")):
            steps += [(_EQUAL, 0, 1, numbers[column]), refuse(_EPERM)]
    if not truncate:
        steps += [(_EQUAL, 0, 1, _TRUNCATES[column]), refuse(_EACCES)]
    if mapped:
        steps += [(_EQUAL, 0, 1, _OPENAT2[column]), refuse(_ENOSYS)]  # its mode is in memory
        for numbers, mode, flags in _MODES:
            if numbers[column] < 0:
                continue
            block = [(_LOAD, 0, 0, 16 + 8 * flags), (_ANY_OF, 0, 3, _CREATES)] if flags >= 0 else []
            block += [(_LOAD, 0, 0, 16 + 8 * mode), (_ANY_OF, 0, 1, _SET_ID), refuse(_EPERM), (_RETURN, 0, 0, _ALLOW)]
            steps += [(_EQUAL, 0, len(block), numbers[column]), *block]
    if not strict:
        return [*steps, (_RETURN, 0, 0, _ALLOW)]
    # Its flags are in memory, which a filter cannot read: libraries fall back to clone.
    steps += [(_EQUAL, 0, 1, _CLONE3[column]), refuse(_ENOSYS)]
    steps += [
        (_EQUAL, 0, 4, _CLONE[column]),
        (_LOAD, 0, 0, 16),
        (_ANY_OF, 0, 1, _NEW_NAMESPACES),
        refuse(_EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    if offline:
        # A socket of the file system, or of the hypervisor, leaves any network namespace.
        steps += [(_EQUAL, 0, 2 + len(_FAMILIES), _SOCKET[column]), (_LOAD, 0, 0, 16)]
        left = len(_FAMILIES)
        for family in _FAMILIES:
            steps.append((_EQUAL, left, 0, family))
            left -= 1
        steps.append(refuse(_EACCES))
    steps.append((_RETURN, 0, 0, _ALLOW))
    return steps
