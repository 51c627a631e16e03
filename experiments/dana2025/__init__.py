"""Dana, Pydi & Chevaleyre, Memorization in Attention-only Transformers (AISTATS 2025)."""

ORDER = (
    "heads",
    "head_dimension",
    "embedding_dimension",
    "slopes",
    "attention_vs_mlp",
    "smallest",
    "heads_larger",
    "head_dimension_larger",
    "attention_vs_mlp_larger",
    "heads_deeper",
    "head_dimension_deeper",
    "attention_vs_mlp_deeper",
    "distributions",
    "sequence_encoder",
    "contexts",
)
