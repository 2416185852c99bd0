"""Runs tests on an emulated processor with AVX-512, on a machine that has none.

python tests/emulate.py --bochs FOLDER [--kernel FILE] [--add FILE ...] PYTEST_ARGUMENT ...

Bochs emulates a whole computer. It boots Linux from a disc image made here, which holds this Python
with its packages, this repository, and the files named with `--add`, at the paths they have here;
there is no other disk and no network. CONTRIBUTING.md says what has to be installed.
"""

from __future__ import annotations

import argparse
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("octavo", "pytest", "hypothesis", "gguf")
"""Distributions to take along with all they require. PyTorch is none of them."""

UNUSED_FOLDERS = {"__pycache__", "test", "tests", "site-packages", "dist-packages", "idlelib",
                  "ensurepip", "lib2to3", "tkinter", "turtledemo"}  # fmt: skip
PROCESSOR = "corei7_icelake_u"
# Bochs claims fast short copies but not fast copies; Linux 6.1 then patches a broken memmove.
KERNEL_ARGUMENTS = "console=ttyS0,115200 rdinit=/init quiet mitigations=off clearcpuid=580"
BOOT_LOADER = (
    Path("/usr/lib/ISOLINUX/isolinux.bin"),
    Path("/usr/lib/syslinux/modules/bios/ldlinux.c32"),
)

BOOT_MENU = """\
default linux
label linux
  kernel /kernel
  append initrd=/files {arguments}
"""

MACHINE = """\
cpu: model={processor}, ips=50000000, reset_on_triple_fault=0
memory: guest={memory_mb}, host={memory_mb}
romimage: file={bochs}/bios/BIOS-bochs-latest
vgaromimage: file={bochs}/bios/VGABIOS-lgpl/VGABIOS-lgpl-latest.bin
display_library: nogui
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path={disc}, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev={console}
log: {log}
panic: action=fatal
error: action=ignore
info: action=ignore
debug: action=ignore
"""

# The first process of the guest; its output is the console, its last line the result.
FIRST_PROCESS = """\
#!{python}
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None)
for kind, folder in (("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")):
    os.makedirs(folder, exist_ok=True)
    libc.mount(kind.encode(), folder.encode(), kind.encode(), 0, None)
for folder in ("/tmp", "/dev/shm"):
    os.makedirs(folder, exist_ok=True)
console = os.open("/dev/ttyS0", os.O_RDWR)
for descriptor in range(3):
    os.dup2(console, descriptor)
os.environ.update({environment!r})
command = [sys.executable, "-m", "pytest", *{arguments!r}]
try:
    print("{result}", subprocess.run(command, cwd={folder!r}).returncode, flush=True)
finally:
    libc.reboot(0x4321FEDC)  # power off
"""
RESULT = "pytest ended with status"


def python_files() -> Iterator[Path]:
    """The interpreter and its standard library."""
    yield Path(sys.executable).resolve()
    for key in ("stdlib", "platstdlib"):
        yield from _below(Path(sysconfig.get_path(key)))


def package_files(names: Iterable[str]) -> Iterator[Path]:
    """Files of installed distributions and of everything that they require without an extra."""
    waiting, seen = list(names), set[str]()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if name in PACKAGES:
                raise SystemExit(f"{name} is not installed here: run `make test` first") from None
            continue  # required on other systems only
        for file in distribution.files or ():
            if not UNUSED_FOLDERS & set(file.parts):
                yield Path(str(distribution.locate_file(file))).resolve()
        waiting.extend(
            re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
            for requirement in distribution.requires or ()
            if "extra ==" not in requirement
        )


def repository_files() -> Iterator[Path]:
    """The tests, what they import from here, and their settings; not `octavo`, a package."""
    yield REPOSITORY / "pyproject.toml"
    yield from _below(REPOSITORY / "benchmarks")
    yield from (path for path in (REPOSITORY / "tests").rglob("*") if path.suffix != ".pyc")


def _below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in UNUSED_FOLDERS]
        yield from (Path(parent) / name for name in files if not name.endswith(".a"))


def libraries(files: Iterable[Path]) -> set[Path]:
    """The shared libraries that programs and extension modules are linked with."""
    found: set[Path] = set()
    for file in files:
        answer = subprocess.run(["ldd", file], capture_output=True, text=True, check=False)
        found |= {Path(path) for path in re.findall(r"(/\S+) \(0x", answer.stdout)}
    return found


FILE, FOLDER = 0o100755, 0o040755
"""Modes of what an archive holds: all of it may be read and run."""


class Archive:
    """A cpio archive (format newc), which Linux unpacks into its first file system."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._known = {Path("/")}

    def add(self, path: Path, data: bytes, mode: int = FILE) -> None:
        """Add a file at an absolute path, after the folders above it."""
        if path in self._known:
            return
        if path.parent not in self._known:
            self.add(path.parent, b"", FOLDER)
        self._known.add(path)
        self._write(str(path)[1:], data, mode)

    def close(self) -> None:
        self._write("TRAILER!!!", b"", 0)

    def _write(self, name: str, data: bytes, mode: int) -> None:
        encoded = name.encode() + b"\0"
        fields = (len(self._known), mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
        self._out.write(head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4))


def pack(out: BinaryIO, first_process: str, added: Sequence[Path], scratch: Path) -> None:
    """Write all files of the guest; modules go along compiled, for compiling takes it minutes."""
    files = {*python_files(), *package_files(PACKAGES), *repository_files()}
    files = {path for path in files if path.is_file()}
    python = Path(sys.executable).resolve()
    linked = [path for path in files if ".so" in path.name or path == python]
    archive = Archive(out)
    archive.add(Path("/init"), first_process.encode())
    for path in [*sorted(files | libraries(linked)), *(path.absolute() for path in added)]:
        archive.add(path, path.read_bytes())
        compiled = _compile(path, scratch / "module.pyc") if path.suffix == ".py" else None
        if compiled is not None:
            tag = sys.implementation.cache_tag
            archive.add(path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc", compiled)
    archive.close()


def _compile(source: Path, target: Path) -> bytes | None:
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    try:
        py_compile.compile(str(source), str(target), doraise=True, invalidation_mode=mode)
    except (py_compile.PyCompileError, ValueError):  # templates and deliberate errors
        return None
    return target.read_bytes()


def make_disc(folder: Path, kernel: Path, write_files: Callable[[BinaryIO], None]) -> Path:
    """A CD image that boots the kernel with its files in memory."""
    content = folder / "content"
    content.mkdir()
    for loader in BOOT_LOADER:
        shutil.copy(loader, content)
    shutil.copy(kernel, content / "kernel")
    (content / "isolinux.cfg").write_text(BOOT_MENU.format(arguments=KERNEL_ARGUMENTS))
    with (content / "files").open("wb") as out:
        write_files(out)
    disc = folder / "disc.iso"
    boot = "-b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table"
    subprocess.run(["genisoimage", "-quiet", "-o", disc, *boot.split(), content], check=True)
    shutil.rmtree(content)
    return disc


def run_machine(folder: Path, bochs: Path, disc: Path, memory_mb: int) -> int | None:
    """Show the guest's console until it turns itself off; return its result, None without one."""
    console = folder / "console"
    console.touch()
    description = MACHINE.format(
        processor=PROCESSOR, memory_mb=memory_mb, bochs=bochs, disc=disc, console=console,
        log=folder / "log",
    )  # fmt: skip
    (folder / "machine").write_text(description)
    command = [str(bochs / "bochs"), "-q", "-f", str(folder / "machine")]
    quiet = subprocess.DEVNULL
    with (
        console.open(encoding="utf-8", errors="replace", newline="\n") as shown,
        subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet) as machine,
    ):
        try:
            ended = False
            while not ended:
                ended = machine.poll() is not None
                print(shown.read().replace("\r", ""), end="", flush=True)
                time.sleep(0.5)
        finally:
            machine.terminate()
    found = re.search(rf"{RESULT} (\d+)", console.read_text(errors="replace"))
    return int(found[1]) if found else None


def guest_environment() -> dict[str, str]:
    """The environment of the tests; examples are the same in every run."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("OCTAVO_")}
    fixed = {
        "HOME": str(Path.home()), "PATH": os.defpath, "NO_COLOR": "1", "CI": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path[1:] if path),
        "PYTHONDONTWRITEBYTECODE": "1", "OCTAVO_CPU_TIER": "avx512-vnni",
    }  # fmt: skip
    return kept | fixed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bochs", type=Path, required=True, help="folder where Bochs was built")
    parser.add_argument("--kernel", type=Path, help="a Linux kernel (the newest in /boot)")
    parser.add_argument(
        "--add", type=Path, action="append", default=[], help="a file to take along"
    )
    parser.add_argument("--memory-mb", type=int, default=2048)
    arguments, for_pytest = parser.parse_known_args()
    kernel = arguments.kernel or max(Path("/boot").glob("vmlinuz-*"), default=Path("/boot/vmlinuz"))
    bochs = arguments.bochs.absolute()
    for needed in (bochs / "bochs", kernel, *BOOT_LOADER, *arguments.add):
        if not needed.is_file():
            parser.error(f"{needed} is missing: see CONTRIBUTING.md")
    first_process = FIRST_PROCESS.format(
        python=Path(sys.executable).resolve(), environment=guest_environment(),
        arguments=["-p", "no:cacheprovider", *for_pytest], folder=str(REPOSITORY), result=RESULT,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("packing this Python and the repository", flush=True)
        disc = make_disc(
            folder, kernel, lambda out: pack(out, first_process, arguments.add, folder)
        )
        status = run_machine(folder, bochs, disc, arguments.memory_mb)
    if status is None:
        print("the machine ended without a result", file=sys.stderr)
    return 1 if status is None else status


if __name__ == "__main__":
    sys.exit(main())
