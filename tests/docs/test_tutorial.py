"""The notebook runs from top to bottom, and shows what it says."""

import json
import linecache
import pathlib

NOTEBOOK = pathlib.Path(__file__).parents[2] / "docs" / "tutorial.ipynb"


def test_the_tutorial_runs(tmp_path, monkeypatch):
    notebook = json.loads(NOTEBOOK.read_text())
    monkeypatch.chdir(tmp_path)
    names, shown = {"__name__": "tutorial"}, []
    for i, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code":
            continue
        shown += [kind for output in cell["outputs"] for kind in output.get("data", {})]
        # As notebooks do, so that the source of a cell's classes is found.
        text, file = "".join(cell["source"]), f"<cell {i}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), names)
    assert names["memobench"].check(names["mine"]) == ()
    assert names["mine"].code.startswith("code-")
    both, made = names["both"], names["made"]
    assert set(both["architecture"]) == {"attention_only", "mlp", "products"}
    assert both["n_params"].between(500, 540).all()
    assert (made["status"] == "ok").all()
    methods = ["method", "protocol", "learning_rate", "final_learning_rate", "n_batches", "task"]
    assert (both[methods].nunique() == 1).all()
    assert names["logits_N"].shape == (32,)
    assert shown.count("image/png") == 2
    assert not any(tmp_path.iterdir())
