"""The command mesh: python -m toolmesh ls."""

import os
import sys

from .binary import find

try:
    program = find()
except FileNotFoundError as failure:
    sys.exit(str(failure))
os.execv(program, [program, *sys.argv[1:]])
