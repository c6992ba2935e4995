"""What code of an index tries wherever it comes to run, and says to the test.

It is no module: the test puts it as a text into backends, start-up files, interpreters
and init commands, followed by probe(WHERE, {...}). It reports by a file and by HTTP,
because a level may deny either.
"""


def probe(where, at):
    try:
        import glob
        import json
        import os
        import re
        import socket
        import sys
    except Exception:  # an interpreter that has only begun
        return
    words = re.compile(rb"(?:agentenv|ownpass|othertoken)[a-z0-9]+")

    def link(path):
        try:
            return os.readlink(path)
        except OSError:
            return ""

    got = {
        "case": at["case"], "where": where, "uid": os.geteuid(), "pid": os.getpid(), "argv": sys.argv[:8],
        "pidns": link("/proc/self/ns/pid"), "read": {}, "wrote": [], "processes": at.get("processes", 0),
    }
    for name, pattern in at["read"].items():
        for path in glob.glob(pattern):
            try:
                with open(path, "rb") as f:
                    got["read"][name] = f.read(200).decode("latin-1")
            except OSError:
                pass
    for name, pattern in at["write"].items():
        for path in glob.glob(pattern):
            try:
                if os.path.isdir(path):
                    path += "/probe-" + at["case"]
                with open(path, "ab") as f:
                    f.write(b"\n# " + at["case"].encode() + b"\n")
                got["wrote"].append(name)
            except OSError:
                pass
    for name, files in (("own environment", ["/proc/self/environ"]), ("environment", glob.glob("/proc/[0-9]*/environ"))):
        for file in files:
            try:
                with open(file, "rb") as f:
                    for word in words.findall(f.read()):
                        got["read"][name + " " + word[:8].decode("latin-1")] = word.decode()
            except OSError:
                pass
    text = json.dumps(got).encode()
    try:
        path = "%s/%s-%d-%s" % (at["drop"], at["case"], os.getpid(), os.urandom(6).hex())
        with open(path + ".new", "wb") as f:
            f.write(text)
        os.rename(path + ".new", path + ".json")
    except OSError:
        pass
    try:
        with socket.create_connection(("127.0.0.1", at["port"]), timeout=5) as s:
            s.sendall(b"POST /probe HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            s.recv(64)
    except OSError:
        pass
