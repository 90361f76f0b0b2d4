"""Progress in a log file is lines."""

import io
import sys

from tqdm import tqdm

from tessera.base.bar_lines import bar_stream


def test_a_log_has_no_carriage_returns(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with tqdm(total=100, mininterval=0, bar_format="{n_fmt} of 100{postfix}", file=bar_stream()) as bar:
        for step in range(100):
            bar.update(1)
            if step == 49:
                tqdm.write("half", file=sys.stderr)
        bar.set_postfix_str("100%", refresh=False)
    print("done", file=bar_stream())
    assert log.getvalue().splitlines() == ["0 of 100", "half", "100 of 100, 100%", "done"]
