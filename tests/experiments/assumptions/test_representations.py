"""Representations of models that the tests make, and the files that models read."""

import json
import logging

import numpy as np
import pytest

from memobench.common.errors import UserError
from memobench.experiments.assumptions import inputs, models, representations
from tests.experiments.assumptions.test_kruskal import by_size

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
    return models.untrained(name, **{**TINY[name], **options})


def saved(name, folder, transformers):
    kind, _ = models.UNTRAINED[name]
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
    examples = list(inputs.random_inputs(model, 6, "noise", 0))
    fast = representations.represent(model, examples, n_contexts=2, batch=4)
    monkeypatch.setattr(representations, "_READERS", {})
    whole = representations.represent(model, examples, n_contexts=6, batch=3)
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
    model = models.checkpoint(folder)
    examples = list(inputs.random_inputs(model, 2, "natural", 0))
    found = representations.represent(model, examples, n_contexts=2)
    module = extra.AutoModel.from_pretrained(folder, attn_implementation="sdpa").double().eval()
    if name == "vit-base":
        pixels = torch.from_numpy(np.stack(examples)).permute(0, 3, 1, 2).double()
        arguments = {"pixel_values": (pixels / 255 - 0.5) / 0.5}
    else:
        arguments = {"input_ids": torch.from_numpy(np.stack(examples))}
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
    found = representations.represent(model, inputs.random_inputs(model, 9, "noise", 0))
    assert by_size(found["embedding"].queries_TxD, [2])["full_rank"].item() == 0
    assert by_size(found["layer 1"].queries_TxD, [5])["full_rank"].item() == 1


@pytest.mark.usefixtures("extra")
def test_seeds_are_kept():
    weights = [tiny("gpt2", seed=seed).module.wte.weight for seed in (3, 3, 4)]
    assert (weights[0] == weights[1]).all()
    assert not (weights[0] == weights[2]).all()


@pytest.mark.usefixtures("extra")
def test_natural_stand_ins_have_the_spectra_they_promise():
    vit, gpt2 = tiny("vit-base", image_size=64), tiny("gpt2")
    images_TxPxPx3 = np.stack(list(inputs.random_inputs(vit, 20, "natural", 0)))
    amplitude_F = np.abs(np.fft.fft(images_TxPxPx3[..., 0], axis=2)).mean(axis=(0, 1))
    assert amplitude_F[1] > 3 * amplitude_F[8] > 3 * amplitude_F[24]
    tokens = np.concatenate(list(inputs.random_inputs(gpt2, 400, "natural", 0)))
    counts = np.bincount(tokens, minlength=50)
    assert 1.5 < counts[0] / counts[1] < 2.7
    with pytest.raises(UserError, match="style"):
        next(inputs.random_inputs(gpt2, 1, "loud", 0))


@pytest.mark.usefixtures("extra")
def test_images_are_read_and_broken_ones_named(pictures, caplog):
    model = tiny("vit-base")
    with caplog.at_level(logging.WARNING):
        found = list(inputs.images(model, pictures))
    assert [image.shape for image in found] == [(12, 12, 3)] * 5
    assert found[0].dtype == np.uint8
    named = " ".join(record.getMessage() for record in caplog.records)
    assert "corrupt.png" in named
    assert "notes.jpg" in named
    assert len(list(inputs.images(model, pictures, limit=2))) == 2
    queries = representations.represent(model, found)["layer 1"].queries_TxD
    assert by_size(queries, [5])["full_rank"].item() == 1


@pytest.mark.usefixtures("extra")
def test_texts_are_cut_into_sequences_and_broken_ones_named(tmp_path, caplog):
    (tmp_path / "a.txt").write_text("abc" * 10)
    (tmp_path / "b.txt").write_text("xyz" * 4)
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe\xff")
    (tmp_path / ".hidden").write_bytes(b"\xff")
    with caplog.at_level(logging.WARNING):
        sequences = list(inputs.texts(tiny("gpt2"), tmp_path))
    assert len(sequences) == 42 // 12
    assert set(np.concatenate(sequences)) <= {ord(letter) % 50 for letter in "abcxyz"}
    assert [record.getMessage().count("c.txt") for record in caplog.records] == [1]
    first = next(iter(inputs.texts(tiny("bert-base"), tmp_path)))[0]
    assert first == inputs.FIRST_TOKEN % 50


def test_a_checkpoint_brings_its_tokenizer(tmp_path, extra):
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel

    folder = saved("bert-base", tmp_path / "model", extra)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two"]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "cls_token": "[CLS]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a").write_text("two one " * 6)
    model = models.checkpoint(folder)
    (tokens_N,) = inputs.texts(model, tmp_path / "texts")
    assert tokens_N.tolist() == [2, 5] + [6, 5] * 5


@pytest.mark.usefixtures("extra")
def test_empty_and_missing_folders_are_mistakes(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    pytest.importorskip("PIL")
    with pytest.raises(UserError, match=r"images=.*nothing that can be read"):
        list(inputs.images(tiny("vit-base"), empty))
    with pytest.raises(UserError, match=r"texts=.*nothing that can be read"):
        list(inputs.texts(tiny("gpt2"), empty))
    (empty / "short.txt").write_text("short")
    with pytest.raises(UserError, match="5 tokens, less than one sequence of 12"):
        list(inputs.texts(tiny("gpt2"), empty))
    with pytest.raises(UserError, match=r"images=.*is not a folder"):
        list(inputs.images(tiny("vit-base"), tmp_path / "missing"))
    with pytest.raises(UserError, match="reads text"):
        inputs.images(tiny("gpt2"), empty)
    with pytest.raises(UserError, match="model='gpt9' is unknown"):
        models.untrained("gpt9")


def test_only_whole_safetensors_checkpoints_in_folders_are_loaded(tmp_path, extra):
    import torch

    # A name on a hub is not a folder, and is never looked up.
    with pytest.raises(UserError, match="is not a folder"):
        models.checkpoint("gpt2")
    pickled = saved("gpt2", tmp_path / "pickled", extra)
    state = extra.AutoModel.from_pretrained(pickled).state_dict()
    (pickled / "model.safetensors").unlink()
    torch.save(state, pickled / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"holds no \*.safetensors"):
        models.checkpoint(pickled)
    corrupt = saved("gpt2", tmp_path / "corrupt", extra)
    (corrupt / "model.safetensors").write_bytes(b"corrupt")
    with pytest.raises(UserError, match="cannot be loaded"):
        models.checkpoint(corrupt)
    partial = saved("gpt2", tmp_path / "partial", extra)
    weights = {name: value for name, value in state.items() if name != "h.0.mlp.c_fc.weight"}
    from safetensors.torch import save_file

    save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks h\.0\.mlp\.c_fc\.weight"):
        models.checkpoint(partial)
    remote = saved("gpt2", tmp_path / "remote", extra)
    config = json.loads((remote / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoModel": "code.Mine", "AutoConfig": "code.C"}}
    (remote / "config.json").write_text(json.dumps(config))
    (remote / "code.py").write_text("raise SystemExit('executed')")
    with pytest.raises(UserError, match="cannot be loaded"):
        models.checkpoint(remote)


def test_without_the_extra_one_line_names_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install 'memobench\[pretrained\]'") as error:
        models.untrained("gpt2")
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("extra")
def test_lengths_beyond_the_tables_are_mistakes():
    model = tiny("gpt2")
    with pytest.raises(UserError, match="length=40"):
        representations.represent(model, [np.zeros(40, np.int64)])
