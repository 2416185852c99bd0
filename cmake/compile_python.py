"""Write the C code of Python modules that are compiled (mypyc), for CMake to build.

usage: compile_python.py FOLDER GROUP FILE...

The modules share one library, `GROUP__mypyc`, and each has an extension that only points into it.
Printed is a line for each extension: its dotted name, the folder of the headers it needs, then the
files it is built of, separated by semicolons.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
from pathlib import Path

from mypyc.build import include_dir, mypycify


def check(file: str) -> None:
    """End with an error if compiling would silently change what a module means."""
    for node in ast.walk(ast.parse(Path(file).read_text())):
        if isinstance(node, ast.ClassDef) and node.keywords:
            sys.exit(f"{file}:{node.lineno}: mypyc drops the keywords of class {node.name}")


def main() -> None:
    folder, group, *files = sys.argv[1:]
    for file in files:
        check(file)
    os.environ["MYPYPATH"] = "src"
    options = [
        # Whoever builds need not have what the rest of the package imports, and that is checked
        # elsewhere.
        "--config-file=",
        "--follow-imports=silent",
        "--ignore-missing-imports",
        f"--cache-dir={folder}/cache",
    ]
    # What mypyc has to say belongs to the log of the build, not to the answer.
    with contextlib.redirect_stdout(sys.stderr):
        extensions = mypycify([*options, *files], target_dir=folder, group_name=group)
    for extension in extensions:
        sources = [Path(source).resolve().as_posix() for source in extension.sources]
        print(";".join([extension.name, include_dir(), *sources]))


if __name__ == "__main__":
    main()
