"""Logits of Transformers in float64, written out in NumPy, independent of the code they check."""

import numpy as np
import scipy.special


def reference_logits(architecture, params, tokens):
    """The model written out head by head and position by position, in float64."""
    a = architecture
    p = {key: np.asarray(x, np.float64) for key, x in params.items()}
    is_relu = getattr(a, "activation", "gelu") == "relu"
    full, compress = a.heads == "full", a.heads == "compressed" and a.d_head != a.d_model
    stream = [p["token_embedding"][t] for t in tokens]
    if full:
        stream = [x + p["position_embedding"][s] for s, x in enumerate(stream)]
    for layer in range(a.n_layers):
        weight = {key: p[f"layer{layer}_{key}"] for key in ("query", "key", "value", "output")}
        inputs = [p["compress"] @ x if compress else x for x in stream]
        if not full:
            inputs = [u + p["position_embedding"][s] for s, u in enumerate(inputs)]
        new = []
        for s, x in enumerate(stream):
            total = np.zeros_like(inputs[0])
            for h in range(a.n_heads):
                query = weight["query"][h] @ inputs[s]
                scores = [query @ (weight["key"][h] @ inputs[i]) for i in range(s + 1)]
                attention = scipy.special.softmax(np.array(scores) / np.sqrt(a.d_head))
                value = sum(attention[i] * (weight["value"][h] @ inputs[i]) for i in range(s + 1))
                total += weight["output"][h] @ value
            x = x + (p["decompress"] @ total if compress else total)
            hidden = p[f"layer{layer}_mlp_in"] @ x + p[f"layer{layer}_mlp_in_bias"]
            gate = hidden > 0 if is_relu else scipy.special.ndtr(hidden)
            new.append(x + p[f"layer{layer}_mlp_out"] @ (hidden * gate))
        stream = new
    return p["unembedding"] @ stream[-1]
