"""What architectures that read tokens ask of a run."""

from memobench.errors import UserError
from memobench.specs import Architecture, LabelledContexts, Task

# Tasks that ask more than the token after a sequence, and who serves them.
_SPECIAL = {"factual_recall": "recall_transformer or gpt", "sequences": "gpt"}
_OPTIONS = ("positions", "d_value", "score_scale", "residual", "embeddings")


def require_tokens(
    task: Task | LabelledContexts,
    architecture: Architecture,
    *foreign: str,
    own: tuple[str, ...] = (),
    serves: tuple[str, ...] = (),
) -> Task:
    """The task if it is one of tokens and no option of other architectures is set, or UserError.

    `foreign` names further options that mean nothing to this one, `own` those that do. `serves` are
    the tasks that not every architecture serves and this one does.
    """
    if not isinstance(task, Task):
        raise UserError(
            f"{architecture.name} reads tokens, not {task.name}; choose query_attention for them"
        )
    if task.name in _SPECIAL and task.name not in serves:
        raise UserError(
            f"{architecture.name} does not serve the task {task.name!r}; "
            f"choose {_SPECIAL[task.name]}"
        )
    for option in (*_OPTIONS, *foreign):
        if option not in own and getattr(architecture, option) is not None:
            raise UserError(
                f"{option}={getattr(architecture, option)!r} means nothing to {architecture.name}; "
                f"leave {option} out"
            )
    return task


def require_full_heads(architecture: Architecture) -> None:
    """Raises UserError for the compressed heads of Dana et al. (2025)."""
    if architecture.heads != "full":
        raise UserError(
            f"heads={architecture.heads!r}: {architecture.name} has full heads; set heads='full'"
        )


def require_one_layer(architecture: Architecture) -> None:
    """Raises UserError for several layers."""
    if architecture.n_layers != 1:
        raise UserError(
            f"n_layers={architecture.n_layers}: {architecture.name} has one layer; leave it out"
        )


def require_one_token(task: Task, architecture: Architecture) -> None:
    """Raises UserError for a task whose sequences have several tokens."""
    if task.context_length != 1:
        raise UserError(
            f"context_length={task.context_length}: {architecture.name} reads one token; "
            "set context_length=1"
        )


def require_only_width(architecture: Architecture, but_mlp: bool = False) -> None:
    """Raises UserError for sizes beyond d_model, which d_head repeats, and with `but_mlp` d_mlp."""
    a = architecture
    d_mlp = 0 if not but_mlp else a.d_mlp
    if (a.d_head, a.n_heads, a.n_layers, a.d_mlp) != (a.d_model, 1, 1, d_mlp):
        names = "d_head, n_heads and n_layers" if but_mlp else "d_head, n_heads, n_layers and d_mlp"
        raise UserError(
            f"{names} mean nothing to {a.name}; "
            f"set d_head=d_model={a.d_model} and leave out the others"
        )
