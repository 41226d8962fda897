import subprocess
import sys


def test_compactory_imports_neither_the_mastered_writer_nor_the_http_client() -> None:
    code = "import compactory, sys; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "compactory" in modules
    assert not [name for name in modules if name.startswith(("compactory_mastered", "compactory_client"))]
