"""Check that the oldest direct dependencies that pyproject.toml allows work together; `make lowest` runs it.

It installs them in an environment of their own below build/, imports every module, and runs commands on a terminal.
The environment is kept until the requirements change.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "lowest"
UV = str(ROOT / ".venv" / "bin" / "uv")
PYTHON = str(FOLDER / "venv" / "bin" / "python")
EXTRAS = ("rocksdb", "connectors", "api", "console", "spark", "schema-registry", "prometheus")
SOURCES = ("store", "connectors", "api", "cli", "sql")
IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith(("__main__", "pytest_plugin")) and ".demo" not in module.name:
            importlib.import_module(module.name)
"""
COMMANDS = {  # arguments → exit code
    ("--version",): 0,
    ("--help",): 0,
    ("source", "run", "--help"): 0,
    ("get", "topic", "key", "--kafka", "http://nonsense"): 2,
    ("serve", "topic", "--kafka", "127.0.0.1:1", "--listen", "nonsense"): 2,
}


def main() -> int:
    """Install, import and run; return 1 after the first failure, whose output was printed."""
    _install()
    packages = sorted(path.name for source in SOURCES for path in (ROOT / source).glob("*compactory*"))
    if subprocess.run([PYTHON, "-c", IMPORT_ALL, *packages], check=False).returncode:
        return 1
    for arguments, expected in COMMANDS.items():
        exit_code, output = _run_on_terminal([PYTHON, "-m", "compactory_cli", *arguments])
        if exit_code != expected or "Traceback" in output:
            print(f"compactory {' '.join(arguments)}: exit code {exit_code}, not {expected}\n{output}")
            return 1
    print("lowest direct versions: every module is imported, commands run")
    return 0


def _install() -> None:
    """Install the project and its oldest dependencies, unless that was done for the same requirements."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    installed, requirements = FOLDER / "installed.txt", FOLDER / "requirements.txt"
    extras = [argument for extra in EXTRAS for argument in ("--extra", extra)]
    resolve = [UV, "pip", "compile", "-q", "--resolution", "lowest-direct", "--python-version", "3.11", "--no-header"]
    subprocess.run([*resolve, *extras, "-o", str(requirements), "pyproject.toml"], cwd=ROOT, check=True)
    if installed.exists() and installed.read_bytes() == requirements.read_bytes():
        return
    subprocess.run([UV, "venv", "-q", "--clear", "--python", sys.executable, str(FOLDER / "venv")], check=True)
    install = [UV, "pip", "install", "-q", "--python", PYTHON]
    subprocess.run([*install, "-r", str(requirements)], check=True)
    subprocess.run([*install, "--no-deps", "-e", str(ROOT)], check=True)
    installed.write_bytes(requirements.read_bytes())


def _run_on_terminal(command: list[str]) -> tuple[int, str]:
    """Run a command on a pseudo terminal, where structlog and rich draw in colours; return exit code and output."""
    controller, terminal = pty.openpty()
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, close_fds=True) as process:
        os.close(terminal)
        output = bytearray()
        try:
            while part := os.read(controller, 65536):
                output += part
        except OSError:  # Linux ends the output of a pseudo terminal so
            pass
        os.close(controller)
        return process.wait(), output.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
