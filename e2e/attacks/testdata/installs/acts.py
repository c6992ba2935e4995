"""What builds and init commands do to environments and folders, beside what they probe.

Each is a function of the folder that it changes and of PROBE, the text of a line that
reports. It goes where probe.py goes.
"""


def envs(at):
    import glob
    import os

    found = [os.environ["VIRTUAL_ENV"]] if os.environ.get("VIRTUAL_ENV") and os.path.isdir(os.environ["VIRTUAL_ENV"]) else []
    for pattern in ("/executor/envs/*", "/executor/envs/new-*", "/executor/shared/envs/new-*"):
        found += glob.glob(at["data"] + pattern)
    return found


def put(path, text, mode=0o644):
    import os

    try:
        if os.path.islink(path) or os.path.exists(path):
            os.remove(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, mode)
        return True
    except OSError:
        return False


def point(path, target):
    import os
    import shutil

    try:
        if os.path.islink(path) or os.path.isfile(path):
            os.remove(path)
        elif os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        if os.path.lexists(path):
            os.rename(path, path + "-before")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
    except OSError:
        pass


def instead_of_python(PROBE, python):
    return "#!/bin/sh\n%s -I -S -c '%s' \"$@\" </dev/null >/dev/null 2>&1\nexec %s \"$@\"\n" % (python, PROBE, python)


def replace_interpreter(env, at, PROBE):
    for name in ("python", "python3", "python" + at["minor"]):
        put(env + "/bin/" + name, instead_of_python(PROBE, at["python"]), 0o755)


def own_library(env, at, PROBE):
    """pyvenv.cfg names a home whose standard library is the index's own."""
    import os

    real, own = os.path.dirname(os.__file__), env + "/own/lib/python" + at["minor"]
    try:
        os.makedirs(own, exist_ok=True)
        for name in os.listdir(real):
            if name not in ("os.py", "site.py", "__pycache__") and not os.path.lexists(own + "/" + name):
                os.symlink(real + "/" + name, own + "/" + name)
        for name in ("os.py", "site.py"):
            with open(real + "/" + name) as f:
                put(own + "/" + name, f.read() + "\n" + PROBE + "\n")
        put(env + "/pyvenv.cfg", "home = %s/own/bin\ninclude-system-site-packages = false\nversion = %s\n" % (env, at["minor"]))
        os.makedirs(env + "/own/bin", exist_ok=True)
        os.symlink(at["python"], env + "/own/bin/python3")
    except OSError:
        pass


def packages(env, at):
    return env + "/lib/python" + at["minor"] + "/site-packages/"


def start_up(env, at, PROBE):
    for name in ("sitecustomize.py", "usercustomize.py", "a.pth"):
        put(packages(env, at) + name, PROBE + "\n")


def other_package(env, at, PROBE):
    put(packages(env, at) + "honest/__init__.py", "VALUE = 'altered'\n")


def markers(env, at, PROBE):
    """The marker names an interpreter of the index's, and the list of files has it."""
    import json
    import os

    try:
        with open(env + "/toolmesh-environment.json") as f:
            marker = json.load(f)
        own = env + "/own-python"
        put(own, instead_of_python(PROBE, at["python"]), 0o755)
        info = os.stat(own)
        marker["interpreter"]["path"] = own
        marker["interpreter"]["stamp"] = "%d %d" % (info.st_size, info.st_mtime_ns)
        put(env + "/toolmesh-environment.json", json.dumps(marker))
        for name in ("python", "python3", "python" + at["minor"]):
            point(env + "/bin/" + name, own)
    except (OSError, ValueError, KeyError):
        pass


def link_written(env, at, PROBE):
    """What the agent writes into an environment leads to a folder of its own."""
    import os

    for name in ("toolmesh-files.json.new", "toolmesh-environment.json.new", "toolmesh-files.json", "toolmesh-environment.json"):
        point(env + "/" + name, at["target"] + "/file")
    for folder, _, names in list(os.walk(packages(env, at))):
        if any(name.endswith(".py") for name in names) and not folder.endswith("__pycache__"):
            point(folder + "/__pycache__", at["target"] + "/folder")


def link_source(env, at, PROBE):
    """What the agent writes into a source leads to a folder of its own."""
    import os

    where = os.getcwd()
    point(where + "/.toolmesh/init.done", at["target"] + "/file")
    point(where + "/__pycache__", at["target"] + "/folder")


def link_folder(env, at, PROBE):
    import os

    try:
        os.rename(os.getcwd() + "/.toolmesh", os.getcwd() + "/before")
    except OSError:
        pass
    point(os.getcwd() + "/.toolmesh", at["target"] + "/folder")


def hard_links(env, at, PROBE):
    import os

    for folder in [*envs(at)[:1], os.getcwd()]:
        try:
            os.link(at["public"], folder + "/hard")
        except OSError:
            pass


def set_user(env, at, PROBE):
    import os
    import shutil

    for folder in [*(one + "/bin" for one in envs(at)[:1]), os.getcwd()]:
        try:
            shutil.copy("/bin/cat", folder + "/as-owner")
            os.chmod(folder + "/as-owner", 0o6755)
        except OSError:
            pass


def rewrite_source(env, at, PROBE):
    """Other tools at a lower level, and lists that agree with them."""
    import hashlib
    import os

    tools = '[index]\ntools = ["m.hello", "m.added"]\nsandbox = "none"\n'
    put("tools.toml", tools)
    try:
        with open("m.py", "a") as f:
            f.write("\n" + PROBE + "\ndef added() -> str:\n    return 'added'\n")
        with open(".toolmesh/files.txt") as f:
            text = f.read()
        put(".toolmesh/files.txt", text.replace("m.py\n", ""))
        put(".toolmesh/lock.txt", '{"python":"","requirements":"honest==1\\n"}')
        with open("tools.toml", "rb") as f:
            hashlib.sha256(f.read())
        os.utime("tools.toml", (0, 0))
    except OSError:
        pass


def remain(env, at, PROBE):
    """A process that stays when the build is over."""
    import os

    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for fd in range(3):
                os.dup2(null, fd)
            os.closerange(3, 256)
            os.execv("/bin/sleep", ["left-" + at["case"] + at["secret"], "600"])
        os._exit(0)
    os.wait()


def multiply(env, at, PROBE):
    """As many processes as there may be, 600 at most. They end with it."""
    import os
    import signal
    import time

    mine = []
    try:
        for _ in range(600):
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            mine.append(pid)
    except OSError:
        pass
    at["processes"] = len(mine)
    for pid in mine:
        os.kill(pid, signal.SIGKILL)
    for pid in mine:
        os.waitpid(pid, 0)


def poison_cache(env, at, PROBE):
    import glob

    for cache in glob.glob(at["data"] + "/executor/uv-cache") + glob.glob(at["data"] + "/executor/shared/uv-cache"):
        for path in glob.glob(cache + "/archive-v*/*/later/__init__.py"):
            put(path, "VALUE = 'altered'\n")
        put(cache + "/probe-" + at["case"], "x")


# Those that are of each environment; the others are done once.
EACH = (replace_interpreter, own_library, start_up, other_package, markers, link_written)
