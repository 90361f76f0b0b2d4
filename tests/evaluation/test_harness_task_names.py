"""`eval --tasks`: a name that the harness does not have is refused before anything takes long."""

import pytest

from tests import refusals

pytest.importorskip("lm_eval")
from tessera.evaluation import harness

# What the harness's own dependencies warn about while they are imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_an_unknown_task_is_named_before_the_harness_reads_its_files(tmp_path, monkeypatch, refused):
    """Which takes it minutes; and before the model is loaded."""
    (tmp_path / "tasks.yaml").write_text("task: local_choice\n")
    manager = harness.TaskManager

    def of_folder(include_path, include_defaults):
        assert not include_defaults
        return manager(include_path=include_path, include_defaults=False)

    monkeypatch.setattr(harness, "TaskManager", of_folder)
    for name, advice in (("local_choise", "Did you mean 'local_choice'?"), ("qqqqqqqq", "See lm_eval ls tasks.")):
        tasks = ("--include-path", tmp_path, "--tasks", f"local_choice,{name}")
        refused(f"got {name!r}. {advice}\n", "eval", "no folder", *tasks)
    refused("--tasks must name a task; got none", "eval", "no folder", "--tasks", ",")


@pytest.mark.parametrize(
    "text",
    [
        "task: name",
        "task: 'name'  # of it",
        '"task": "name"',
        "group: name",
        "tag: [other, name]",
        "tag:\n  - other\n  - name",
        "task:\n  - task: name\n    alias: other",
    ],
)
def test_names_are_found_however_they_are_written(tmp_path, monkeypatch, text):
    monkeypatch.setattr(harness.lm_eval.tasks, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "included").write_text(f"dataset: other\n{text}\nmetric: last\n")
    harness.expect_tasks(["name", "na*"])
    refusals.refused("got 'last'", harness.expect_tasks, ["last"])


@pytest.mark.parametrize(("name", "advice"), [("naem", "Did you mean 'name'?"), ("metrik", "See lm_eval ls tasks.")])
def test_only_names_of_tasks_are_advised(tmp_path, monkeypatch, name, advice):
    """For `metrik` that was `metric:`, a key in a list."""
    monkeypatch.setattr(harness.lm_eval.tasks, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "task.yaml").write_text("task: name  # of it\nmetric_list:\n  - metric: acc\n")
    refusals.refused_in_a_line(f"got {name!r}. {advice}", harness.expect_tasks, [name])
