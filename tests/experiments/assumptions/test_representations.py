"""Representations of models that the tests make."""

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
def test_places_are_the_hidden_states_of_the_library(name, extra):
    import torch

    model = tiny(name)
    examples = list(inputs.random_inputs(model, 2, "natural", 0))
    found = representations.represent(model, examples, n_contexts=2)
    config = extra.AutoConfig.for_model(models.UNTRAINED[name][0], **TINY[name])
    torch.manual_seed(0)
    module = extra.AutoModel.from_config(config, attn_implementation="sdpa").double().eval()
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
def test_unknown_models_are_mistakes():
    with pytest.raises(UserError, match="model='gpt9' is unknown"):
        models.untrained("gpt9")


def test_without_the_extra_one_line_names_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install 'memobench\[pretrained\]'") as error:
        models.untrained("gpt2")
    assert "\n" not in str(error.value)
