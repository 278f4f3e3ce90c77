"""Every notebook runs from its first cell to its last, and is stored without its outputs.

One is stored with them, to show a failover without a run.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nbformat
import pytest

from tests.conftest import ROOT
from tests.demo.conftest import Shell

pytestmark = pytest.mark.full

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WITH_OUTPUTS = "leader_failover"
OF_JAVA = "WARNING: Using incubator modules: jdk.incubator.vector"


@pytest.mark.notebook
@pytest.mark.timeout(600)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook: Path, tmp_path: Path, shell: Shell) -> None:
    copy = tmp_path / "notebooks" / notebook.name
    copy.parent.mkdir()
    shutil.copy(notebook, copy)
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    nbmake = ["--nbmake", "--overwrite", "--nbmake-timeout=120", "-p", "no:cacheprovider"]
    # The notebook sets the workers' Python: its user has not done so.
    other = {"PYSPARK_PYTHON": "/nonexistent", "PYSPARK_DRIVER_PYTHON": "/nonexistent"}
    shell.run([sys.executable, "-m", "pytest", *nbmake, copy], tmp_path, **other)

    cells = nbformat.read(copy, 4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    noise = "".join(output.text for output in outputs if output.get("name") == "stderr")
    assert noise.replace(OF_JAVA, "").strip() == ""


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_no_outputs(notebook: Path) -> None:
    kept = nbformat.read(notebook, 4)
    nbformat.validate(kept)
    if notebook.stem == WITH_OUTPUTS:
        return
    for cell in kept.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def test_notebook_with_outputs_has_a_picture_and_two_tables() -> None:
    kept = nbformat.read(ROOT / "notebooks" / f"{WITH_OUTPUTS}.ipynb", 4)
    outputs = [output for cell in kept.cells for output in cell.get("outputs", [])]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert kinds.count("image/png") == 1
    assert kinds.count("text/html") == 2
    assert {output.output_type for output in outputs} <= {
        "display_data",
        "execute_result",
        "stream",
    }
    texts = [str(output) for output in outputs if "image/png" not in output.get("data", {})]
    assert not [text for text in texts if "/home/" in text or "/tmp/" in text or "/root/" in text]
