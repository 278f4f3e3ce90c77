"""Check that this commit can be released. Build its distributions and the SBOM into build/release/.

Run by `make release-check`, in an environment with the extra `release`. It publishes nothing.
"""

from __future__ import annotations

import configparser
import hashlib
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "build" / "release"
NEEDED = {"LICENSE", "README.md", "CHANGELOG.md", "setup.cfg", "setup.py", "pyproject.toml"}
RELATIVE = re.compile(r"\]\((?!https?:)[^)\s]+\)")


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """Return the output of a command, which must succeed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def problems_of_source(version: str) -> list[str]:
    """Return the reasons why the sources cannot be released under this version."""
    problems = []
    heading = re.compile(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", re.MULTILINE)
    if not heading.search((ROOT / "CHANGELOG.md").read_text("utf-8")):
        problems.append(f"CHANGELOG.md has no date for {version}")
    if "not on PyPI" in (ROOT / "README.md").read_text("utf-8"):
        problems.append("README.md states that isolog is not on PyPI")
    if not runpy.run_path(str(ROOT / "setup.py"))["SOURCE"]:
        problems.append("SOURCE in setup.py has no public repository")
    if run("git", "status", "--porcelain"):
        problems.append("the working tree has changes")
    tagged = run("git", "tag", "--list", f"v{version}").strip()
    if tagged and run("git", "rev-list", "-n1", tagged) != run("git", "rev-parse", "HEAD"):
        problems.append(f"the tag {tagged} is another commit")
    return problems


def problems_of_sdist(archive: Path) -> list[str]:
    """Return missing and superfluous files of an sdist."""
    with tarfile.open(archive) as opened:
        names = {PurePath(*PurePath(each).parts[1:]) for each in opened.getnames()}
    lacked = sorted(NEEDED - {str(each) for each in names})
    tests = sorted(str(each) for each in names if each.parts[:1] == ("tests",))
    return [f"{archive.name} lacks {each}" for each in lacked] + [
        f"{archive.name} has the test file {each}" for each in tests
    ]


def problems_of_wheel(archive: Path, version: str) -> list[str]:
    """Return the defects of a wheel's metadata."""
    with zipfile.ZipFile(archive) as opened:
        folder = f"isolog-{version}.dist-info"
        metadata = message_from_bytes(opened.read(f"{folder}/METADATA"))
        licensed = f"{folder}/licenses/LICENSE" in opened.namelist()
    relative = RELATIVE.findall(str(metadata.get_payload()))
    return [f"{archive.name} has the relative link {each}" for each in relative] + [
        f"{archive.name} has no {name}"
        for name, present in (
            ("licence", licensed),
            ("License-Expression", metadata["License-Expression"]),
            ("Author", metadata["Author"]),
        )
        if not present
    ]


def problems_of_installation(wheel: Path, version: str) -> list[str]:
    """Install the wheel without extras into a new environment. Write its SBOM."""
    place = OUTPUT / "environment"
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--quiet", wheel)
    run(*pip, "check")
    reported = run(place / "bin" / "isolog", "--version", folder=OUTPUT).strip()
    imported = run(python, "-c", "import isolog; print(isolog.__version__)", folder=OUTPUT).strip()
    sbom = OUTPUT / f"isolog-{version}.cdx.json"
    run(
        sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible",
        "--output-file", sbom, python,
    )  # fmt: skip
    shutil.rmtree(place)
    return [
        f"the wheel reports {each}, and setup.cfg has {version}"
        for each in (reported.removeprefix("isolog "), imported)
        if each != version
    ]


def main() -> None:
    """Print all problems, and fail if there is one."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    version = settings["metadata"]["version"]
    problems = problems_of_source(version)
    shutil.rmtree(OUTPUT, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", OUTPUT, ROOT)
    (sdist,), (wheel,) = OUTPUT.glob("*.tar.gz"), OUTPUT.glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    problems += problems_of_sdist(sdist) + problems_of_wheel(wheel, version)
    problems += problems_of_installation(wheel, version)
    files = sorted(each for each in OUTPUT.iterdir() if each.is_file())
    sums = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}" for each in files]
    (OUTPUT / "SHA256SUMS").write_text("\n".join(sums) + "\n", "ascii")
    print("\n".join(str(each.relative_to(ROOT)) for each in sorted(OUTPUT.iterdir())))
    if problems:
        raise SystemExit("not ready to release:\n  " + "\n  ".join(problems))


if __name__ == "__main__":
    main()
