"""MLP neurons as attention heads: Huben & Morris (2023), given weights rewritten.

"Attention-only transformers and implementing MLPs with attention heads": a head of dimension 1 that
scores a null token 0 and its own token s, and whose value there is s, gives s sigmoid(s) = SiLU(s).
So a layer of attention with one head for each neuron does what an MLP does.

Limits: it is exact for SiLU only; GELU is nearly s sigmoid(1.702 s), ReLU the limit of sharper and
sharper sigmoids, neither exactly. Every sequence has to begin with the null token, which takes the
first of two positions, so the model answers single tokens; and a neuron's 2 d + 1 parameters become
the 4 (d + 1) d_h of a head.

Shape letters: N vocab_size, S tokens, D d_model, W d_mlp, H heads, K d_head.
"""

import math

import numpy as np

from memobench.errors import UserError
from memobench.models.transformer import MLP, AttentionOnly

Params = dict[str, np.ndarray]


def with_null_token(params: Params) -> Params:
    """The same weights, except that token 0 makes the stream zero at the first position."""
    embedding_ND = params["token_embedding"].copy()
    embedding_ND[0] = -params["position_embedding"][0]
    return params | {"token_embedding": embedding_ND}


def neurons_as_heads(architecture: MLP, params: Params) -> tuple[AttentionOnly, Params]:
    """A two-layer attention-only Transformer that computes what a one-layer MLP Transformer does.

    Layer 1 has the heads of the given one, layer 2 a head for each of its neurons. A new last
    coordinate of the stream flags the last position. Logits are equal on all sequences that begin
    with the null token, in exact arithmetic, and on no others.

    Args:
      architecture: an `mlp` of one layer with full heads and activation silu.
      params: float64, at their true size, for context_length 2 and `with_null_token`.
    """
    _require(architecture, params)
    n_heads = max(architecture.n_heads, architecture.d_mlp)
    attention_only = AttentionOnly(
        d_model=architecture.d_model + 1,
        d_head=architecture.d_head,
        n_heads=n_heads,
        n_layers=2,
        heads="full",
    )
    width = attention_only.d_model
    position_SxD = _padded(params["position_embedding"], 2, width)
    position_SxD[-1, -1] = 1
    made = {
        "token_embedding": _padded(
            params["token_embedding"], len(params["token_embedding"]), width
        ),
        "position_embedding": position_SxD,
        "unembedding": _padded(params["unembedding"], len(params["unembedding"]), width),
    }
    layers = (_same_heads(attention_only, params), _heads_of_neurons(attention_only, params))
    for layer, heads in enumerate(layers):
        nothing = {
            "mlp_in": np.zeros((0, width)),
            "mlp_in_bias": np.zeros(0),
            "mlp_out": np.zeros((width, 0)),
        }
        made |= {f"layer{layer}_{name}": weight for name, weight in (heads | nothing).items()}
    return attention_only, made


def _same_heads(architecture: AttentionOnly, params: Params) -> Params:
    """The heads of the given weights, which neither see nor write the flag; others are zero."""
    h, d_head, d_model = architecture.n_heads, architecture.d_head, architecture.d_model
    into, out_of = (h, d_head, d_model), (h, d_model, d_head)
    shapes = {"query": into, "key": into, "value": into, "output": out_of}
    return {name: _padded(params[f"layer0_{name}"], *shape) for name, shape in shapes.items()}


def _heads_of_neurons(architecture: AttentionOnly, params: Params) -> Params:
    """Heads whose score from the last position to itself, and whose value there, are W_1 x + b.

    The null token's stream is zero, and so are its score and its value.
    """
    h, d_head, d_model = architecture.n_heads, architecture.d_head, architecture.d_model
    in_WxD, bias_W = params["layer0_mlp_in"], params["layer0_mlp_in_bias"]
    # The module scales scores by this constant, in float32.
    score_scale = float(np.float32(1 / math.sqrt(d_head)))
    query_HxKxD = np.zeros((h, d_head, d_model))
    query_HxKxD[: len(bias_W), 0, -1] = 1 / score_scale
    read_HxKxD = _padded(np.column_stack([in_WxD, bias_W])[:, None, :], h, d_head, d_model)
    write_HxDxK = _padded(params["layer0_mlp_out"].T[:, :, None], h, d_model, d_head)
    return {"query": query_HxKxD, "key": read_HxKxD, "value": read_HxKxD, "output": write_HxDxK}


def _padded(weight: np.ndarray, *shape: int) -> np.ndarray:
    missing = [(0, size - have) for size, have in zip(shape, weight.shape, strict=True)]
    return np.pad(np.asarray(weight, np.float64), missing)


def _require(architecture: MLP, params: Params) -> None:
    if (architecture.heads, architecture.n_layers) != ("full", 1):
        raise UserError("it is about one layer; take architecture 'mlp' with heads='full'")
    if architecture.activation != "silu":
        raise UserError(
            f"activation={architecture.activation!r}: heads are SiLU neurons; take 'silu'"
        )
    if len(params["position_embedding"]) != 2:
        raise UserError("heads weigh a token against the null token only; take context_length=2")
    if (params["token_embedding"][0] != -params["position_embedding"][0]).any():
        raise UserError("token 0 is not a null token; take the weights of with_null_token")
