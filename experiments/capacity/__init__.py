"""Experiments on what others measured or proved about capacity: facts seen, recalled, and bits."""

ORDER = (
    *("exposure", "linear_memory", "mlp_memory", "factual_recall", "trade_off"),
    *("recall_scaling", "bits", "one_step"),
)
