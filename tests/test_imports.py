"""Who imports whom, inside functions too: no circle, downwards only, and privacy by itself."""

import ast
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import networkx
import pytest

from tests.conftest import ROOT

# From the bottom up, above the single files of stages/: a package imports lower rows alone, or itself. What is in no
# row is a stage; stages may import each other, and flows are above them.
LAYERS = (("distributed",), ("privacy",), ("data",), ("models",), ("losses",), ("sources", "tasks"), ("params",))
FILES, STAGES, FLOWS = -1, len(LAYERS), len(LAYERS) + 1
LIBRARIES_OF_PRIVACY = {
    "dp_accounting",
    "filelock",
    "numpy",
    "pyarrow",
    "pydantic",
    "randomgen",
    "scipy",
    "torch",
    "triton",
}


def modules(root: Path) -> dict[str, Path]:
    found = {}
    for path in (p for package in ("stages", "flows") for p in (root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: Collection[str] = ()) -> Iterator[str]:
    """What a file imports, wherever in it: `from a import b` is a.b if that is a known module, else a."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}, line {node.lineno}: write imports in full"
            inner = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in known else node.module for name in inner)


def graph(root: Path) -> networkx.DiGraph:
    known, edges = modules(root), networkx.DiGraph()
    for name, path in known.items():
        edges.add_edges_from((name, target) for target in imported(path, known) if target in known and target != name)
    return edges


def package(module: str) -> str:
    return ".".join(module.split(".")[:2])


def packages(edges: networkx.DiGraph) -> networkx.DiGraph:
    """Each of `stages` and of `flows` is one; modules that stand by themselves are, too."""
    between = ((package(a), package(b)) for a, b in edges.edges)
    return networkx.DiGraph([(a, b) for a, b in between if a != b])


def cycles(edges: networkx.DiGraph) -> list[list[str]]:
    return [sorted(found) for found in networkx.strongly_connected_components(edges) if len(found) > 1]


def layer(package: str) -> int:
    top, name = f"{package}.".split(".")[:2]
    if top == "flows":
        return FLOWS
    if (ROOT / "stages" / f"{name}.py").is_file():
        return FILES
    return next((row for row, names in enumerate(LAYERS) if name in names), STAGES)


@pytest.fixture(scope="module")
def edges() -> networkx.DiGraph:
    return graph(ROOT)


def test_modules_import_each_other_in_no_circle(edges):
    assert len(edges) > 100 and cycles(edges) == []


def test_packages_import_each_other_in_no_circle(edges):
    assert cycles(packages(edges)) == []


def test_imports_point_downwards(edges):
    upwards = [
        f"{a} -> {b}" for a, b in packages(edges).edges if layer(a) < layer(b) or FILES < layer(a) == layer(b) < STAGES
    ]
    assert upwards == []


def test_the_report_knows_nothing_of_mlflow(edges):
    assert not [(a, b) for a, b in packages(edges).edges if a == "stages.report" and b == "stages.publish"]


def test_nobody_imports_the_command_of_another(edges):
    assert not [(a, b) for a, b in edges.edges if b.endswith("__main__")]


def test_privacy_stands_on_its_own(edges):
    """What a reviewer of the guarantee has to read: this package, and what is below it."""
    inside = [name for name in edges if package(name) == "stages.privacy"]
    below = {package(b) for name in inside for b in networkx.descendants(edges, name)}
    assert {name for name in below if layer(name) > FILES} == {"stages.privacy", "stages.distributed"}
    known = modules(ROOT)
    names = {target.split(".")[0] for name in inside for target in imported(known[name])}
    assert names - sys.stdlib_module_names - {"stages"} == LIBRARIES_OF_PRIVACY


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"stages/a.py": "import stages.b", "stages/b.py": "def f():\n    from stages.a import x"}, ["a", "b"]),
        ({"stages/a/x.py": "from stages.b import y", "stages/b/y.py": "", "stages/b/z.py": "import stages.a.x"}, None),
    ],
    ids=["of modules, one inside a function", "of packages alone"],
)
def test_a_circle_would_be_seen(tmp_path, files, found):
    for name, source in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    edges = graph(tmp_path)
    assert cycles(edges) == ([[f"stages.{name}" for name in found]] if found else [])
    assert cycles(packages(edges)) == [["stages.a", "stages.b"]]
