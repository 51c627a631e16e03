"""Four relu neurons for d - 1 sequences: Bubeck, Eldan, Lee & Mikulincer (NeurIPS 2020).

"Network size and size of the weights in memorization with two-layers neural networks", on the
elementary construction with 4 ceil(T/d) neurons, after Baum (1988): a hyperplane through d points
contains no other, and a ridge along it gives those points any values and all others zero. A neuron
has d + 2 weights, so that a value takes little more than four.

Random embeddings and random attention give every sequence a point x_D of the stream, whose last
coordinate is 1, so that hyperplanes are linear: u.x = 0. With the clip phi(s) = relu(s + eps) -
relu(s - eps) the neurons of

    [phi(u.x + delta v.x) - phi(u.x)] / delta

add up to v.x where |u.x| + delta |v.x| <= eps, that is on the hyperplane, and to zero where
|u.x| >= eps + delta |v.x|, that is at all other points for a small delta. The MLP writes the number
z of the next token into the first coordinate; these numbers are evenly spaced around zero. The
unembedding makes the nearest one the top logit: 2 m z - m^2 = z^2 - (z - m)^2.

Everything is divided by delta: the larger it is, the more exact the arithmetic. Again and again,
many random groups of the remaining points are tried, and the one with the largest delta is taken.

Shape letters: T sequences, D d_model, G points of a group (up to d_model - 1), C candidate groups,
W neurons.
"""

from typing import ClassVar, NamedTuple

import numpy as np

from memobench import theory
from memobench.constructions import random_attention
from memobench.constructions.base import Construction, scale_of
from memobench.constructions.problem import Constructed, Problem
from memobench.core.spec import kind
from memobench.models.transformer import Transformer

# The standard deviation of attention scores: with large scores heads look at a single token, and
# sequences that differ in another one cannot be told apart.
SCALE = 0.3
# How many groups are tried for each one taken.
_CANDIDATES = 64
# Delta as a share of the largest that is allowed, so that rounding does no harm.
_SLACK = 0.9


class Group(NamedTuple):
    """members_G, the points; u_D, v_D, eps and delta of their neurons; condition of x_GxD.

    Candidates have a leading axis C each.
    """

    members_G: np.ndarray
    u_D: np.ndarray
    v_D: np.ndarray
    eps: np.ndarray
    delta: np.ndarray
    condition: np.ndarray

    def neurons(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """in_WxD, bias_W and out_W of the four neurons."""
        shifted_D = self.u_D + self.delta * self.v_D
        in_WxD = np.stack([shifted_D, shifted_D, self.u_D, self.u_D])
        bias_W = self.eps * np.array([1.0, -1.0, 1.0, -1.0])
        return in_WxD, bias_W, np.array([1.0, -1.0, -1.0, 1.0]) / self.delta


@kind("bubeck2020")
class Bubeck2020(Construction):
    """(d - 1) floor(w / 4) sequences, by hyperplanes through groups of points."""

    bound: ClassVar[theory.Bound] = theory.BUBECK

    scale: float | None = scale_of("attention scores")  # type: ignore[misc]

    def construct(self, problem: Problem) -> Constructed:
        """Weights of a one-layer MLP Transformer with relu neurons and any kind of heads."""
        module = _module(problem)
        d_model, d_mlp = module.d_model, module.d_mlp
        params, x_TxD = _points(problem, module)
        number_N = np.arange(module.vocab_size) - (module.vocab_size - 1) / 2
        target_T = number_N[problem.examples.next_TxK[:, 0]]
        # The skip connection adds the first coordinate as it is.
        groups = partition(x_TxD, target_T - x_TxD[:, 0], problem.rng)

        in_WxD, bias_W, out_DxW = (
            np.zeros((d_mlp, d_model)),
            np.zeros(d_mlp),
            np.zeros((d_model, d_mlp)),
        )
        for i, group in enumerate(groups):
            four = slice(4 * i, 4 * i + 4)
            in_WxD[four], bias_W[four], out_DxW[0, four] = group.neurons()
        unembedding_NxD = np.zeros((module.vocab_size, d_model))
        unembedding_NxD[:, 0], unembedding_NxD[:, -1] = 2 * number_N, -(number_N**2)

        z_T = x_TxD[:, 0] + np.maximum(x_TxD @ in_WxD.T + bias_W, 0) @ out_DxW[0]
        params |= {
            "layer0_mlp_in": in_WxD,
            "layer0_mlp_in_bias": bias_W,
            "layer0_mlp_out": out_DxW,
            "unembedding": unembedding_NxD,
        }
        certificate = {
            "fit_error": float(np.abs(z_T - target_T).max(initial=0)),
            "condition": float(max((group.condition for group in groups), default=1)),
        }
        # An error of 0.5, half the distance of two numbers, would change the answer.
        problem.require(
            certificate["fit_error"] < 0.25,
            "hyperplanes come too close to other points for float64; take another seed",
        )
        return Constructed(params, certificate, read_out=("unembedding",))


def partition(x_TxD: np.ndarray, target_T: np.ndarray, rng: np.random.Generator) -> list[Group]:
    """Groups of d_model - 1 points (the last may be smaller), and neurons that fit their targets.

    The last coordinate of the points is 1.
    """
    left_L, groups = np.arange(len(x_TxD)), []
    while len(left_L):
        size = min(x_TxD.shape[1] - 1, len(left_L))
        candidates_CxL = left_L[rng.random((_CANDIDATES, len(left_L))).argsort(axis=1)]
        tried = _try_groups(x_TxD, target_T, candidates_CxL[:, :size])
        delta_C = tried.delta
        if size < len(left_L) <= 2 * size:
            # What remains is the last group: it is chosen together with this one.
            delta_C = np.minimum(
                delta_C, _try_groups(x_TxD, target_T, candidates_CxL[:, size:]).delta
            )
        groups.append(Group(*(of_C[delta_C.argmax()] for of_C in tried)))
        left_L = np.setdiff1d(left_L, groups[-1].members_G)
    return groups


def _try_groups(x_TxD: np.ndarray, target_T: np.ndarray, members_CxG: np.ndarray) -> Group:
    """The candidates' neurons, each with the largest delta that does not change other points."""
    size = members_CxG.shape[1]
    target_CxG = target_T[members_CxG]
    # x_GxD = left_GxG diag(singular_G) right_GxD; a row of right_DxD beyond is normal to the group.
    left_CxGxG, singular_CxG, right_CxDxD = np.linalg.svd(x_TxD[members_CxG])
    u_CxD = right_CxDxD[:, -1]
    share_CxG = np.einsum("cij,ci->cj", left_CxGxG, target_CxG) / singular_CxG
    v_CxD = np.einsum("cgd,cg->cd", right_CxDxD[:, :size], share_CxG)
    off_CxT, value_CxT = u_CxD @ x_TxD.T, v_CxD @ x_TxD.T
    # eps = delta times the largest target serves the group; the others then bound delta.
    largest_Cx1 = np.abs(target_CxG).max(axis=1, keepdims=True)
    bound_CxT = np.abs(off_CxT) / (largest_Cx1 + np.abs(value_CxT))
    np.put_along_axis(bound_CxT, members_CxG, np.inf, axis=1)
    delta_C = _SLACK * np.minimum(bound_CxT.min(axis=1), 1)
    # Where relu is off nothing is rounded: most points should be on that side.
    sign_Cx1 = np.where(np.median(off_CxT, axis=1, keepdims=True) > 0, -1, 1)
    return Group(
        members_G=members_CxG,
        u_D=sign_Cx1 * u_CxD,
        v_D=v_CxD,
        eps=delta_C * largest_Cx1[:, 0],
        delta=delta_C,
        condition=singular_CxG[:, 0] / singular_CxG[:, -1],
    )


def _points(problem: Problem, module: Transformer) -> tuple[random_attention.Params, np.ndarray]:
    """Random embeddings and attention, and the points x_TxD; their last coordinate is 1."""
    params = random_attention.draw(problem)
    params["token_embedding"][:, -1] = 1
    if module.full:
        params["position_embedding"][:, -1] = 0
    params = random_attention.with_scores(problem, params, problem.method.scale or SCALE)
    output = random_attention.draw_output(problem)
    # Heads do not change that coordinate.
    output["decompress" if "decompress" in output else "layer0_output"][..., -1, :] = 0
    params |= problem.all_held(output)
    return params, random_attention.attend(params, *random_attention.read(problem, params))


def _module(problem: Problem) -> Transformer:
    """The run's module. Raises UserError where the theorem says nothing about it."""
    module = random_attention.transformer(problem)
    problem.require(
        module.d_mlp > 0 and module.activation == "relu",
        f"d_mlp={module.d_mlp}, activation={module.activation!r}; its neurons are relu, take the "
        "architecture 'mlp' with activation='relu'",
    )
    problem.require(module.d_model >= 2, "points need a coordinate besides the constant one")
    problem.require(
        problem.examples.next_TxK.shape[1] == 1,
        "its MLP writes the number of one next token; take n_next=1",
    )
    return module
