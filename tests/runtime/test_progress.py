"""The progress line."""

import memobench
from memobench.planner.costs import Prediction
from memobench.runtime.progress import Progress


def test_a_bar_ends_at_its_total_whatever_is_rounded(make_run, capsys):
    seconds = (4.4, 3.3, 0.1)
    shown, done = 0.0, 0.0
    for each in reversed(seconds):
        done += each
        shown += min(done, sum(seconds)) - shown
    assert shown > sum(seconds)
    packs = [memobench.plan([make_run(seed=seed)])[0] for seed in range(3)]
    with Progress(3, enabled=True) as progress:
        progress.add(packs, Prediction(seconds, False, "cpu", 1, sum(seconds)))
        for pack in reversed(packs):
            progress.finish(pack)
            progress.show(3)
    assert "100%" in capsys.readouterr().err
