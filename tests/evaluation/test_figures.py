"""Figures hold the curves they are given."""

import numpy as np
import pytest

from tessera.evaluation import display


def test_bins_average_every_value_once():
    curve = np.arange(1.0, 101.0)
    curve[10] = np.nan
    places, means = display.binned(curve, per_octave=2)
    assert places.tolist() == pytest.approx(means.tolist())  # the curve is its own position
    assert means[0] == 1.0
    assert means[-1] == np.arange(91, 101).mean()
    assert np.all(np.diff(places) > 0)


def test_training_curves_draw_each_run(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(display, "save_figure", lambda figure, path: figures.append(figure))
    training = [{"step": s, "loss": 5 - s / 10, "tokens": s * 1000} for s in range(1, 20)]
    validated = [*training, {"step": 19, "validation_loss": 3.4}]
    display.training_curves(tmp_path / "two.png", {"mosaic": validated, "other": training})
    assert [len(line.get_xdata()) for line in figures[0].axes[0].lines] == [19, 1, 19]


def test_validation_losses_between_logged_steps_keep_their_place():
    records = [{"step": 1, "loss": 5.0, "tokens": 1_000_000}, {"step": 2, "validation_loss": 4.5}]
    records += [{"step": 3, "loss": 4.0, "tokens": 3_000_000}, {"step": 3, "validation_loss": 4.2}]
    assert display._validation(records) == [(2.0, 4.5), (3.0, 4.2)]


def test_a_moving_average_is_its_formula():
    curve, decay = np.array([4.0, np.nan, 1.0, 2.0]), 0.5
    expected = []
    for place in range(4):
        weights = decay ** np.arange(place, -1, -1.0) * np.isfinite(curve[: place + 1])
        expected.append((weights * np.nan_to_num(curve[: place + 1])).sum() / weights.sum())
    np.testing.assert_allclose(display.moving_average(curve, decay), expected)
    assert np.isnan(display.moving_average(np.array([np.nan, 1.0]), decay)[0])


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_figures_are_known_as_ours(tmp_path, kind):
    from matplotlib.figure import Figure

    gap = np.nan  # where nothing was predicted
    display.position_curves(tmp_path / "deep" / f"ours.{kind}", {"a": [3.0, gap, 2.0], "b": [4.0, 3.0, 2.5]}, "title")
    Figure().savefig(tmp_path / f"theirs.{kind}")
    assert display.is_figure(tmp_path / "deep" / f"ours.{kind}")
    assert not display.is_figure(tmp_path / f"theirs.{kind}")
    assert not display.is_figure(tmp_path)


def test_no_two_of_many_curves_look_the_same():
    looks = [tuple(look.values()) for look in display._looks(30)]
    assert len(set(looks)) == 30


def test_a_table_without_rows_is_its_heading(capsys):
    """Tasks of the harness that only say what a model answered have no metrics."""
    report = {"model": "m", "long_term_memory": None, "results": {"said": {"alias": "said"}}, "n-shot": {"said": 0}}
    display.print_harness_reports([report])
    assert capsys.readouterr().out.split() == ["m", "metric", "value", "standard", "error", "shots", "filter"]
