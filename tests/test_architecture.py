"""The rules of the house that no linter knows."""

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import rlhf
from rlhf.registry import REGISTRIES, load_components
from rlhf.schema import explanations, settings, shape

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "rlhf").rglob("*.py"))

# What a module may import of ours: the longest entry that its name begins with counts. Imports inside functions count
# too; imports for type checkers do not.
BASIC = ["rlhf.types", "rlhf.errors", "rlhf.interfaces", "rlhf.files", "rlhf.distributed", "rlhf.user_code"]
SETTINGS = [*BASIC, "rlhf.registry", "rlhf.schema", "rlhf.tree", "rlhf.yaml_files", "rlhf.command"]
ALLOWED = {
    "rlhf": [],
    "rlhf.errors": [],
    "rlhf.tally": [],
    "rlhf.user_code": ["rlhf.distributed", "rlhf.errors"],
    "rlhf.types": ["rlhf.tally"],
    "rlhf.files": ["rlhf.errors"],
    "rlhf.interruption": ["rlhf.distributed"],
    "rlhf.distributed": [],
    "rlhf.command": ["rlhf.distributed", "rlhf.errors", "rlhf.interruption", "rlhf.schema", "rlhf.user_code"],
    "rlhf.yaml_files": ["rlhf.errors"],
    "rlhf.interfaces": ["rlhf.interfaces"],
    "rlhf.interfaces.inputs": [],
    "rlhf.interfaces.data": ["rlhf.types", "rlhf.interfaces.inputs"],
    "rlhf.interfaces.updates": ["rlhf.types"],
    "rlhf.interfaces.engines": ["rlhf.types", "rlhf.interfaces.updates"],
    "rlhf.interfaces.models": [
        "rlhf.types",
        "rlhf.interfaces.inputs",
        "rlhf.interfaces.updates",
        "rlhf.interfaces.engines",
    ],
    "rlhf.interfaces.figures": ["rlhf.types", "rlhf.interfaces.engines", "rlhf.interfaces.models"],
    "rlhf.interfaces.algorithms": ["rlhf.types", "rlhf.interfaces.engines"],
    "rlhf.interfaces.executors": [],
    "rlhf.progress": BASIC,
    "rlhf.metrics": BASIC,
    "rlhf.summary": [*BASIC, "rlhf.metrics"],
    "rlhf.algorithms.functional": ["rlhf.algorithms.functional"],
    "rlhf.algorithms": [*BASIC, "rlhf.algorithms", "rlhf.models", "rlhf.data", "rlhf.engines"],
    "rlhf.models": [*BASIC, "rlhf.models", "rlhf.algorithms.functional"],
    "rlhf.data": [*BASIC, "rlhf.data", "rlhf.models"],
    "rlhf.engines": [*BASIC, "rlhf.engines", "rlhf.models", "rlhf.algorithms.functional"],
    "rlhf.loops": ["rlhf"],
    "rlhf.deployment": [*BASIC, "rlhf.deployment", "rlhf.algorithms", "rlhf.engines", "rlhf.models", "rlhf.schema"],
    "rlhf.experiment": ["rlhf"],
    "rlhf.stages": [*BASIC, "rlhf.stages", "rlhf.schema", "rlhf.data", "rlhf.models", "rlhf.engines"],
    "rlhf.stages.run": ["rlhf"],
    "rlhf.grid": ["rlhf"],
    "rlhf.grid.executors": [*BASIC, "rlhf.grid.executors", "rlhf.interruption"],
    "rlhf.grid.executors.process": [],
    "rlhf.grid.executors.slurm_cell": ["rlhf.grid.executors.process", "rlhf.interruption"],
    "rlhf.grid.schedule": [],
    "rlhf.grid.axes": ["rlhf.registry"],
    "rlhf.registry": [*BASIC, "rlhf.interruption"],
    "rlhf.schema": SETTINGS,
    "rlhf.tree": SETTINGS,
    "rlhf.config": [*SETTINGS, "rlhf.experiment"],
    "rlhf.components": [*SETTINGS, "rlhf.experiment", "rlhf.data.column_maps"],
    "rlhf.chat": [*SETTINGS, "rlhf.chat", "rlhf.data", "rlhf.models", "rlhf.engines"],
    "rlhf.grid.measures": [*SETTINGS, "rlhf.metrics"],
    "rlhf.grid.statistics": [*BASIC, "rlhf.grid.statistics"],
    "rlhf.report": [*SETTINGS, "rlhf.metrics", "rlhf.experiment", "rlhf.report", "rlhf.stages.folder"],
    "rlhf.testing": [*SETTINGS, "rlhf.testing", "rlhf.config", "rlhf.data", "rlhf.models"],
    "rlhf.run": [
        *SETTINGS,
        "rlhf.config",
        "rlhf.experiment",
        "rlhf.loops.preview",
        "rlhf.summary",
        "rlhf.report",
    ],
}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def within(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


def only_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports(node: ast.AST) -> list[str]:
    if only_for_type_checkers(node):
        return []
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative imports hide where things come from"
        base = node.module or ""
        return [f"{base}.{alias.name}" if (ROOT / base.replace(".", "/")).is_dir() else base for alias in node.names]
    return [name for child in ast.iter_child_nodes(node) for name in imports(child)]


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_point_one_way(path):
    name = module_name(path)
    rules = [rule for rule in ALLOWED if within(name, rule) and (rule != "rlhf" or name == "rlhf")]
    if not rules:
        assert has_main(path), f"{name} is no command: give it a line in ALLOWED"
        return
    allowed = ALLOWED[max(rules, key=len)]
    ours = [target for target in imports(ast.parse(path.read_text())) if within(target, "rlhf")]
    assert [target for target in ours if not any(within(target, package) for package in allowed)] == []


def has_main(path: Path) -> bool:
    return "__name__ == " in path.read_text() or path.name == "__main__.py"


@pytest.fixture(scope="module")
def components():
    load_components()
    found = {cls for registry in REGISTRIES.values() for cls in registry if cls.__module__.startswith("rlhf.")}
    return sorted(found, key=lambda cls: cls.__name__)


def groups_of(classes) -> set[type]:
    """The classes, and the groups of settings inside them."""
    found, pending = set(), list(classes)
    while pending:
        cls = pending.pop()
        if cls not in found:
            found.add(cls)
            forms = [shape(setting.annotation) for setting in settings(cls).values()]
            pending += [form.inner for form in forms if form.kind == "group"]
    return found


def test_commands_define_no_component(components):
    commands = {module_name(path) for path in SOURCES if has_main(path)}
    assert commands >= {"rlhf.run", "rlhf.components"}
    assert [cls for cls in components if cls.__module__ in commands] == []


def test_components_are_frozen_keyword_only_dataclasses(components):
    for cls in groups_of(components):
        parameters = cls.__dataclass_params__
        assert parameters.frozen, f"{cls.__name__} is not frozen"
        kinds = {p.kind for p in inspect.signature(cls).parameters.values()}
        assert kinds <= {inspect.Parameter.KEYWORD_ONLY}, f"{cls.__name__} is not keyword-only"


def test_every_setting_is_documented(components):
    missing = {
        f"{cls.__name__}.{name}"
        for cls in groups_of(components)
        for name in set(settings(cls)) - set(explanations(cls))
    }
    assert sorted(missing) == []


def test_no_setting_is_documented_that_is_not_there(components):
    from docstring_parser import parse

    extra = {
        f"{cls.__name__}.{p.arg_name}"
        for cls in groups_of(components)
        for p in parse(cls.__doc__ or "").params
        if p.arg_name not in settings(cls)
    }
    assert sorted(extra) == []


def test_every_component_is_named_in_a_test(components):
    texts = "\n".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py") if p.name != Path(__file__).name)
    words = set(texts.replace("(", " ").replace(",", " ").replace("\n", " ").replace(".", " ").split())
    assert [cls.__name__ for cls in components if cls.__name__ not in words] == []


def public_modules() -> list[str]:
    names = [found.name for found in pkgutil.walk_packages(rlhf.__path__, prefix="rlhf.")]
    return [name for name in names if not any(part.startswith("_") for part in name.split("."))]


@pytest.mark.parametrize("name", public_modules())
def test_public_things_have_a_docstring(name):
    module = importlib.import_module(name)
    assert module.__doc__ or (module.__file__ or "").endswith("__init__.py"), f"{name} does not say what it is for"
    things = [t for n, t in vars(module).items() if not n.startswith("_") and getattr(t, "__module__", None) == name]
    things = [t for t in things if inspect.isclass(t) or inspect.isfunction(t)]
    assert [t.__name__ for t in things if not (t.__doc__ or "").strip()] == []


def test_functions_and_files_stay_readable():
    lengths = {module_name(path): len(path.read_text().splitlines()) for path in SOURCES}
    del lengths["rlhf.types"]  # one page of all that flows
    assert {name: length for name, length in lengths.items() if length > 400} == {}
    functions = [
        (f"{module_name(path)}.{node.name}", node.end_lineno - node.lineno + 1)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    assert [(name, length) for name, length in functions if length > 60] == []


def test_nothing_third_party_is_imported_early_that_help_need_not_wait_for():
    """``--help`` answers within three seconds because these are imported inside functions."""
    heavy = {
        "transformers",
        "datasets",
        "tokenizers",
        "matplotlib",
        "deepspeed",
        "peft",
        "pandas",
        "tensorboard",
        "plotly",
        "jinja2",
        "scipy",
        "statsmodels",
        "submitit",
        "ray",
    }
    for path in SOURCES:
        top = [node for node in ast.parse(path.read_text()).body if not only_for_type_checkers(node)]
        early = {
            name.split(".")[0]
            for node in top
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in imports(node)
        }
        assert early & heavy == set(), f"{module_name(path)} imports {early & heavy} at the top"
