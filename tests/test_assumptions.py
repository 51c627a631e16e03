"""The assumption checks against sets whose ranks are known, and models that the tests make."""

import json
import logging
import pathlib
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from memobench import assumptions, positions, representations
from memobench.errors import UserError


def by_size(vectors_TxD, sizes=None, **options):
    table = assumptions.kruskal_curve(vectors_TxD, sizes, **{"n_subsets": 50, **options})
    return table.set_index("size")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# --- Ranks -------------------------------------------------------------------------------------


def test_a_vandermonde_matrix_is_in_general_position():
    nodes_T = np.linspace(-1, 1, 9)
    vectors_TxD = nodes_T[:, None] ** np.arange(5)
    assert assumptions.general_position(vectors_TxD)["full_rank"].item() == 1
    assert by_size(vectors_TxD, [5, 6])["full_rank"].tolist() == [1, 0]


def test_repeated_vectors_are_dependent_for_certain(rng):
    curve = by_size(np.tile(rng.normal(size=6), (10, 1)), [1, 2, 6])
    assert curve["full_rank"].tolist() == [1, 0, 0]
    assert (curve.loc[2:, "decided_by"] == "whole set").all()
    assert (curve.loc[2:, ["low", "high"]] == 0).all(axis=None)


def test_a_set_of_low_rank_keeps_it_and_no_more(rng):
    vectors_TxD = rng.normal(size=(30, 4)) @ rng.normal(size=(4, 10))
    curve = by_size(vectors_TxD, [1, 4, 5, 10])
    assert curve["full_rank"].tolist() == [1, 1, 0, 0]
    assert curve.loc[5, "decided_by"] == "whole set"


def test_independent_vectors_need_no_subsets(rng):
    curve = by_size(rng.normal(size=(6, 10)), [1, 3, 6])
    assert curve["full_rank"].tolist() == [1, 1, 1]
    assert (curve["n_subsets"] == 0).all()


def test_a_planted_dependency_is_found_at_its_rate(rng):
    # Three of twelve vectors lie in a plane: subsets of four hold them all with chance 9/495.
    vectors_TxD = rng.normal(size=(12, 8))
    vectors_TxD[2] = vectors_TxD[0] - 2 * vectors_TxD[1]
    curve = by_size(vectors_TxD, [2, 4, 8], n_subsets=400)
    assert curve.loc[2, "full_rank"] == 1
    for size, dependent in ((4, 9 / 495), (8, 126 / 495)):
        assert curve.loc[size, "low"] <= 1 - dependent <= curve.loc[size, "high"]
    assert curve.loc[8, "full_rank"] < curve.loc[4, "full_rank"]


def test_bisection_agrees_with_the_decomposition_of_every_subset(rng):
    spectrum_D = 10.0 ** -np.arange(0, 12, 0.5)
    vectors_TxD = rng.normal(size=(40, 24)) * spectrum_D
    sizes, tolerances = range(1, 25), [1e-4, 1e-8]
    table = assumptions.kruskal_curve(vectors_TxD, sizes, n_subsets=20, tolerances=tolerances)
    draws = np.random.default_rng(0)
    orders = [draws.permutation(40) for _ in range(20)]
    for row in table.itertuples():
        ranks = [
            np.linalg.matrix_rank(vectors_TxD[order[: row.size]], rtol=row.tolerance)
            for order in orders
        ]
        assert row.full_rank == np.mean(np.array(ranks) == row.size)
    assert set(table["decided_by"]) == {"whole set", "subsets"}


def test_one_repeat_spoils_the_subsets_that_hold_both(rng):
    vectors_TxD = rng.normal(size=(10, 6))
    vectors_TxD[7] = vectors_TxD[2]
    curve = by_size(vectors_TxD, [2, 5], n_subsets=500)
    for size, spoiled in ((2, 1 / 45), (5, 10 / 45)):
        assert curve.loc[size, "low"] <= 1 - spoiled <= curve.loc[size, "high"]


def test_the_interval_covers_a_known_share():
    covered = [
        low <= 0.3 <= high
        for successes in np.random.default_rng(1).binomial(40, 0.3, size=300)
        for _, low, high in [assumptions.share(int(successes), 40)]
    ]
    assert np.mean(covered) >= 0.95


def test_rounding_to_float32_is_not_taken_for_rank(rng):
    exact_TxD = rng.normal(size=(20, 3)) @ rng.normal(size=(3, 16))
    rounded_TxD = exact_TxD.astype(np.float32)
    assert by_size(rounded_TxD, [3, 4])["full_rank"].tolist() == [1, 0]
    unaware = by_size(rounded_TxD.astype(np.float64), [3, 4])
    assert unaware["full_rank"].tolist() == [1, 1]
    told = assumptions.relative_tolerance((4, 16), np.float32)
    assert by_size(exact_TxD, [4], tolerances=[told])["tolerance"].item() == told


def test_contexts_of_lower_rank_are_found(rng):
    contexts_BxNxD = rng.normal(size=(3, 4, 6))
    contexts_BxNxD[1, 3] = contexts_BxNxD[1, 0] + contexts_BxNxD[1, 1]
    contexts_BxNxD[2] = 0
    table = assumptions.context_ranks(contexts_BxNxD)
    assert table["rank"].tolist() == [4, 3, 0]
    looser = assumptions.context_ranks(contexts_BxNxD, tolerances=[1e-12, 0.99])
    assert looser["rank"].tolist() == [4, 3, 0, 1, 1, 0]
    assert table["full_rank"].tolist() == [True, False, False]
    assert not assumptions.context_ranks(rng.normal(size=(1, 7, 6)))["full_rank"].item()


def test_query_plus_context_mends_equal_queries(rng):
    queries_TxD = np.ones((20, 8))
    assert by_size(queries_TxD, [3])["full_rank"].item() == 0
    sums_TxD = assumptions.query_plus_context(queries_TxD, rng.uniform(size=(20, 8)))
    assert by_size(sums_TxD, [3])["full_rank"].item() == 1


@pytest.mark.parametrize(
    ("vectors", "options", "message"),
    [
        (np.ones(3), {}, "vectors_TxD has shape"),
        (np.full((2, 2), np.nan), {}, "NaN"),
        (np.array([["a", "b"]]), {}, "dtype"),
        (np.eye(3), {"sizes": [0, 1]}, "sizes"),
        (np.eye(3), {"sizes": [4]}, "sizes"),
        (np.eye(3), {"n_subsets": 0}, "n_subsets"),
    ],
)
def test_mistakes_are_named(vectors, options, message):
    with pytest.raises(UserError, match=message):
        assumptions.kruskal_curve(vectors, **options)


# --- Positions ---------------------------------------------------------------------------------


def test_short_sinusoidal_positions_have_full_rank():
    assert assumptions.context_ranks(positions.sinusoidal(8, 64)[None])["rank"].item() == 8


def test_long_sinusoidal_positions_have_it_only_in_exact_arithmetic():
    rank = assumptions.context_ranks(positions.sinusoidal(197, 768)[None])["rank"].item()
    assert 197 / np.pi < rank < 197


def test_learned_positions_are_independent_and_follow_the_seed():
    encoding_LxD = positions.learned(50, 64, seed=1)
    assert assumptions.context_ranks(encoding_LxD[None])["rank"].item() == 50
    assert not np.allclose(encoding_LxD, positions.learned(50, 64, seed=2))


def test_rotary_turns_and_its_products_depend_on_the_distance(rng):
    query_D, key_D = rng.normal(size=(2, 8))
    queries_LxD = positions.rotary(np.tile(query_D, (6, 1)))
    keys_LxD = positions.rotary(np.tile(key_D, (6, 1)))
    np.testing.assert_allclose(np.linalg.norm(queries_LxD, axis=1), np.linalg.norm(query_D))
    products_LxL = queries_LxD @ keys_LxD.T
    np.testing.assert_allclose(products_LxL[1:, 1:], products_LxL[:-1, :-1])
    with pytest.raises(UserError, match="odd"):
        positions.rotary(np.ones((2, 3)))


# --- Models ------------------------------------------------------------------------------------

# Tiny, but with heads, layers and tables of different sizes, so that no mix-up goes unseen.
TINY = {
    "vit-base": {
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 24,
        "image_size": 12,
        "patch_size": 4,
    },
    "bert-base": {
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 24,
        "vocab_size": 50,
        "max_position_embeddings": 12,
    },
    "gpt2": {"n_embd": 16, "n_layer": 3, "n_head": 4, "n_positions": 12, "vocab_size": 50},
}
LENGTHS = {"vit-base": 10, "bert-base": 12, "gpt2": 12}


@pytest.fixture
def extra():
    pytest.importorskip("torch")
    return pytest.importorskip("transformers")


def tiny(name, **options):
    return representations.untrained(name, **{**TINY[name], **options})


def saved(name, folder, transformers):
    kind, _ = representations.UNTRAINED[name]
    config = transformers.AutoConfig.for_model(kind, **TINY[name])
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture
def pictures(tmp_path, rng):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "within").mkdir()
    for i in range(5):
        pixels = rng.integers(256, size=(9 + i, 8, 3), dtype=np.uint8)
        image.fromarray(pixels).save(tmp_path / ("within" if i % 2 else ".") / f"{i}.png")
    (tmp_path / "corrupt.png").write_bytes((tmp_path / "0.png").read_bytes()[:60])
    (tmp_path / "notes.jpg").write_text("no image")
    return tmp_path


@pytest.mark.parametrize("name", TINY)
@pytest.mark.usefixtures("extra")
def test_reading_the_query_is_reading_the_whole_layer(name, monkeypatch):
    model = tiny(name)
    inputs = list(representations.random_inputs(model, 6, "noise", 0))
    fast = representations.represent(model, inputs, n_contexts=2, batch=4)
    monkeypatch.setattr(representations, "_READERS", {})
    whole = representations.represent(model, inputs, n_contexts=6, batch=3)
    for place in representations.PLACES:
        np.testing.assert_allclose(
            fast[place].queries_TxD, whole[place].queries_TxD, rtol=1e-12, atol=1e-14
        )
        assert fast[place].queries_TxD.dtype == np.float64
    contexts_CxNxD = whole["layer 1"].contexts_CxNxD
    assert contexts_CxNxD.shape == (6, LENGTHS[name], 16)
    np.testing.assert_array_equal(contexts_CxNxD[:, model.query], whole["layer 1"].queries_TxD)
    np.testing.assert_allclose(
        whole["embedding"].contexts_CxNxD.mean(axis=1), fast["embedding"].means_TxD, rtol=1e-12
    )
    assert fast["layer 1"].contexts_CxNxD.shape == (2, LENGTHS[name], 16)


@pytest.mark.parametrize("name", TINY)
def test_places_are_the_hidden_states_of_the_library(name, tmp_path, extra):
    import torch

    folder = saved(name, tmp_path, extra)
    model = representations.checkpoint(folder)
    inputs = list(representations.random_inputs(model, 2, "natural", 0))
    found = representations.represent(model, inputs, n_contexts=2)
    module = extra.AutoModel.from_pretrained(folder, attn_implementation="sdpa").double().eval()
    if name == "vit-base":
        pixels = torch.from_numpy(np.stack(inputs)).permute(0, 3, 1, 2).double()
        arguments = {"pixel_values": (pixels / 255 - 0.5) / 0.5}
    else:
        arguments = {"input_ids": torch.from_numpy(np.stack(inputs))}
    with torch.inference_mode():
        states = module(**arguments, output_hidden_states=True).hidden_states
    for place, state in zip(("embedding", "layer 1"), states, strict=False):
        np.testing.assert_allclose(
            found[place].contexts_CxNxD, state.numpy(), rtol=1e-10, atol=1e-12
        )


@pytest.mark.usefixtures("extra")
def test_models_are_read_where_the_paper_reads_them():
    assert [tiny(name).query for name in ("vit-base", "bert-base", "gpt2")] == [0, 0, -1]
    # The first token is always the same, so that embeddings repeat; behind a layer they do not.
    model = tiny("bert-base")
    found = representations.represent(model, representations.random_inputs(model, 9, "noise", 0))
    assert by_size(found["embedding"].queries_TxD, [2])["full_rank"].item() == 0
    assert by_size(found["layer 1"].queries_TxD, [5])["full_rank"].item() == 1


@pytest.mark.usefixtures("extra")
def test_seeds_and_precision_are_kept():
    model = tiny("gpt2", seed=3)
    assert np.issubdtype(
        representations.represent(
            tiny("gpt2", dtype=np.float32), representations.random_inputs(model, 2, "noise", 0)
        )["layer 1"].queries_TxD.dtype,
        np.float32,
    )
    weights = [tiny("gpt2", seed=seed).module.wte.weight for seed in (3, 3, 4)]
    assert (weights[0] == weights[1]).all()
    assert not (weights[0] == weights[2]).all()


@pytest.mark.usefixtures("extra")
def test_natural_stand_ins_have_the_spectra_they_promise():
    vit, gpt2 = tiny("vit-base", image_size=64), tiny("gpt2")
    images_TxPxPx3 = np.stack(list(representations.random_inputs(vit, 20, "natural", 0)))
    amplitude_F = np.abs(np.fft.fft(images_TxPxPx3[..., 0], axis=2)).mean(axis=(0, 1))
    assert amplitude_F[1] > 3 * amplitude_F[8] > 3 * amplitude_F[24]
    tokens = np.concatenate(list(representations.random_inputs(gpt2, 400, "natural", 0)))
    counts = np.bincount(tokens, minlength=50)
    assert 1.5 < counts[0] / counts[1] < 2.7
    with pytest.raises(UserError, match="style"):
        next(representations.random_inputs(gpt2, 1, "loud", 0))


@pytest.mark.usefixtures("extra")
def test_images_are_read_and_broken_ones_named(pictures, caplog):
    model = tiny("vit-base")
    with caplog.at_level(logging.WARNING):
        found = list(representations.images(model, pictures))
    assert [image.shape for image in found] == [(12, 12, 3)] * 5
    assert found[0].dtype == np.uint8
    named = " ".join(record.getMessage() for record in caplog.records)
    assert "corrupt.png" in named
    assert "notes.jpg" in named
    assert len(list(representations.images(model, pictures, limit=2))) == 2
    queries = representations.represent(model, found)["layer 1"].queries_TxD
    assert by_size(queries, [5])["full_rank"].item() == 1


@pytest.mark.usefixtures("extra")
def test_texts_are_cut_into_sequences_and_broken_ones_named(tmp_path, caplog):
    (tmp_path / "a.txt").write_text("abc" * 10)
    (tmp_path / "b.txt").write_text("xyz" * 4)
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe\xff")
    (tmp_path / ".hidden").write_bytes(b"\xff")
    with caplog.at_level(logging.WARNING):
        sequences = list(representations.texts(tiny("gpt2"), tmp_path))
    assert len(sequences) == 42 // 12
    assert set(np.concatenate(sequences)) <= {ord(letter) % 50 for letter in "abcxyz"}
    assert [record.getMessage().count("c.txt") for record in caplog.records] == [1]
    first = next(iter(representations.texts(tiny("bert-base"), tmp_path)))[0]
    assert first == representations.FIRST_TOKEN % 50


def test_a_checkpoint_brings_its_tokenizer(tmp_path, extra):
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = saved("bert-base", tmp_path / "model", extra)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two"]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "cls_token": "[CLS]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a").write_text("two one " * 6)
    model = representations.checkpoint(folder)
    (tokens_N,) = representations.texts(model, tmp_path / "texts")
    assert tokens_N.tolist() == [2, 5] + [6, 5] * 5


@pytest.mark.usefixtures("extra")
def test_empty_and_missing_folders_are_mistakes(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    pytest.importorskip("PIL")
    with pytest.raises(UserError, match=r"images=.*nothing that can be read"):
        list(representations.images(tiny("vit-base"), empty))
    with pytest.raises(UserError, match=r"texts=.*nothing that can be read"):
        list(representations.texts(tiny("gpt2"), empty))
    (empty / "short.txt").write_text("short")
    with pytest.raises(UserError, match="5 tokens, less than one sequence of 12"):
        list(representations.texts(tiny("gpt2"), empty))
    with pytest.raises(UserError, match=r"images=.*is no folder"):
        list(representations.images(tiny("vit-base"), tmp_path / "missing"))
    with pytest.raises(UserError, match="reads text"):
        representations.images(tiny("gpt2"), empty)
    with pytest.raises(UserError, match="model='gpt9' is unknown"):
        representations.untrained("gpt9")


def test_only_whole_safetensors_checkpoints_in_folders_are_loaded(tmp_path, extra):
    import torch

    # A name on a hub is no folder, and is never looked up.
    with pytest.raises(UserError, match="is no folder"):
        representations.checkpoint("gpt2")
    pickled = saved("gpt2", tmp_path / "pickled", extra)
    state = extra.AutoModel.from_pretrained(pickled).state_dict()
    (pickled / "model.safetensors").unlink()
    torch.save(state, pickled / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"holds no \*.safetensors"):
        representations.checkpoint(pickled)
    spoiled = saved("gpt2", tmp_path / "spoiled", extra)
    (spoiled / "model.safetensors").write_bytes(b"spoiled")
    with pytest.raises(UserError, match="cannot be loaded"):
        representations.checkpoint(spoiled)
    partial = saved("gpt2", tmp_path / "partial", extra)
    weights = {name: value for name, value in state.items() if name != "h.0.mlp.c_fc.weight"}
    from safetensors.torch import save_file

    save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks h\.0\.mlp\.c_fc\.weight"):
        representations.checkpoint(partial)
    remote = saved("gpt2", tmp_path / "remote", extra)
    config = json.loads((remote / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoModel": "code.Mine", "AutoConfig": "code.C"}}
    (remote / "config.json").write_text(json.dumps(config))
    (remote / "code.py").write_text("raise SystemExit('executed')")
    with pytest.raises(UserError, match="cannot be loaded"):
        representations.checkpoint(remote)


def test_without_the_extra_one_line_names_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install 'memobench\[pretrained\]'") as error:
        representations.untrained("gpt2")
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("extra")
def test_lengths_beyond_the_tables_are_mistakes():
    model = tiny("gpt2")
    with pytest.raises(UserError, match="length=40"):
        representations.represent(model, [np.zeros(40, np.int64)])


# --- The script --------------------------------------------------------------------------------


def kruskal_rank(*arguments):
    root = pathlib.Path(__file__).parents[1]
    script = root / "experiments" / "assumptions" / "kruskal_rank.py"
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


def test_the_script_writes_page_figure_and_tables(tmp_path):
    done = kruskal_rank("--sets=uniform", "--subsets=2", "--sizes=2", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "kruskal_rank.md").read_text()
    assert page in done.stdout
    assert "| uniform | query | 32 | 64 |" in page
    assert (tmp_path / "kruskal_rank.png").stat().st_size > 0
    table = pd.read_csv(tmp_path / "kruskal_rank.csv")
    assert set(table["tolerance_of"]) == {"float64", "float32"}
    assert (table.loc[table["set"] == "uniform", "full_rank"] == 1).all()
    assert len(pd.read_csv(tmp_path / "context_ranks.csv"))


def test_the_script_names_mistakes_in_a_line(tmp_path):
    done = kruskal_rank("--sets=none_such", "--output", tmp_path)
    assert done.returncode == 1
    assert "'none_such' is unknown" in done.stderr.splitlines()[-1]
