"""Builds the package with nothing but Python."""

import os
import zipfile


def build_wheel(folder, config=None, metadata=None):
    name = "acme-1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.write("acme/__init__.py")
        wheel.writestr("acme-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
        wheel.writestr("acme-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("acme-1.dist-info/RECORD", "")
    return name
