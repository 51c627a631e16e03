"""What architectures that read tokens ask of a run."""

from memobench.errors import UserError
from memobench.specs import Architecture, LabelledContexts, Task

_OPTIONS = ("positions", "d_value", "score_scale", "residual")


def require_tokens(
    task: Task | LabelledContexts, architecture: Architecture, *foreign: str
) -> Task:
    """The task if it is one of tokens and no option of other architectures is set, or UserError.

    `foreign` names further options that mean nothing to this one.
    """
    if not isinstance(task, Task):
        raise UserError(
            f"{architecture.name} reads tokens, not {task.name}; choose query_attention for them"
        )
    for option in (*_OPTIONS, *foreign):
        if getattr(architecture, option) is not None:
            raise UserError(
                f"{option}={getattr(architecture, option)!r} means nothing to {architecture.name}; "
                f"leave {option} out"
            )
    return task


def require_only_width(architecture: Architecture) -> None:
    """Raises UserError for sizes beyond d_model, which d_head repeats."""
    a = architecture
    if (a.d_head, a.n_heads, a.n_layers, a.d_mlp) != (a.d_model, 1, 1, 0):
        raise UserError(
            f"d_head, n_heads, n_layers and d_mlp mean nothing to {a.name}; "
            f"set d_head=d_model={a.d_model} and leave out the others"
        )
