"""Names for people, and one style for every family in all figures."""

import pytest
from matplotlib.colors import to_rgb

import memobench
from memobench import claims
from memobench.board import families
from memobench.core.architecture import Architecture
from memobench.core.columns import integer
from memobench.core.spec import kind
from memobench.experiments import EXPERIMENTS
from memobench.report import style
from memobench.report.names import display_name
from memobench.store import published

SHAPES = (
    families.shapes,
    families.narrow_shapes,
    families.block_shapes,
    families.narrow_block_shapes,
    families.sparse_shapes,
)
NAMES = sorted({display_name(shape) for of in SHAPES for shape in of(1024)})


def contrast_on_white(color):
    """The contrast of WCAG 2."""
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(color)]
    return 1.05 / (sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) + 0.05)


@pytest.mark.parametrize("n", [1, 2, 11])
def test_all_colors_can_be_seen_on_white(n):
    ramp = [each.color for each in style.ramp(n)]
    assert len(set(ramp)) == n
    for color in (*style.COLORS, style.FAINT, *ramp):
        assert contrast_on_white(color) >= 3
    assert contrast_on_white("white") == 1


def test_every_family_of_the_board_has_a_declared_style_of_its_own():
    assert len(NAMES) > 15
    assert len({style.find_declared(name) for name in NAMES} - {None}) == len(NAMES)


def test_what_one_figure_shows_side_by_side_differs():
    others = [name for name in style.OTHERS if name not in claims.MADE]
    for names in (others, claims.MADE):
        assert len({style.find_declared(name) for name in names}) == len(names)
    # A side is as its narrow heads, of which most are its best form.
    assert style.find_declared("MLP") == style.find_declared("MLP, narrow head")


def test_users_own_lines_have_what_is_left_of_the_palette():
    own = ["mine", "mine, 2 layers", "yours, by <you>"]
    found = style.styles_of([*NAMES, *own])
    assert len(set(found.values())) == len(found)
    assert {name: found[name] for name in NAMES} == style.styles_of(NAMES)
    few = style.styles_of(["MLP", "mine"])
    assert few["mine"].color != few["MLP"].color
    assert few["mine"] == style.styles_of(["attention alone", "mine"])["mine"]
    many = style.styles_of([f"mine {i}" for i in range(100)])
    assert len(set(many.values())) == 100


def test_two_figures_give_one_family_one_style():
    table = published.published("board/typical")
    experiment = EXPERIMENTS["board/typical"]
    drawn = experiment.figure.draw(experiment, "quick", table).axes[0]
    plotted = memobench.plot(table, "bits_per_parameter", hue="family")

    def looks(bar):
        line = bar.lines[0]
        return line.get_color(), line.get_marker(), line.get_linestyle()

    rows = [label.get_text() for label in drawn.get_yticklabels()]
    one = {rows[round(bar.lines[0].get_ydata().mean())]: looks(bar) for bar in drawn.containers}
    other = {bar.get_label(): looks(bar)[:2] for bar in plotted.containers}
    assert {name: look[:2] for name, look in one.items()}.items() <= other.items()
    assert set(one) & set(NAMES)
    for name, (color, marker, dash) in one.items():
        assert style.find_declared(name) in (
            style.Style(color, marker, dash, hollow) for hollow in (True, False)
        )


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        (memobench.AttentionOnly(d_model=4, d_head=4), "attention alone, wide heads"),
        (memobench.AttentionOnly(d_model=4, d_head=2), "attention alone, compressed heads"),
        (memobench.MLP(d_model=4, d_head=2, d_mlp=3, heads="full"), "MLP, narrow head"),
        (
            memobench.MixtureOfExperts(
                d_model=4, d_head=4, d_mlp=3, n_experts=4, top_k=2, norm="none"
            ),
            "mixture of 4 experts, 2 per token, no norm",
        ),
        (
            memobench.Modern(d_model=4, d_head=4, d_mlp=3, activation="bilinear", n_layers=3),
            "bilinear block, 3 layers",
        ),
        (
            memobench.Modern(d_model=4, d_head=2, d_mlp=3, norm="none", n_layers=3),
            "SwiGLU block, no norm, narrow head, 3 layers",
        ),
        (memobench.ProductKeyMemory(d_model=4, d_head=4, d_key=2, n_keys=3), "product-key memory"),
    ],
)
def test_names_are_for_people(architecture, name):
    assert display_name(architecture) == name
    row = {"architecture": architecture.name, **architecture.shared_cells(), **architecture.cells()}
    assert display_name(row) == name


def test_own_kinds_keep_their_names():
    @kind("my_net")
    class MyNet(Architecture):
        n_layers: int = integer("layers", 1, default=1)

    assert display_name(MyNet(d_model=4, n_layers=2)) == "my net, 2 layers"
    assert display_name({"architecture": "not_here", "n_layers": 1}) == "not here"
    families_ = ("{n_experts} (v2)", "a (b=c)", "modern (", ") (")
    for family in families_:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MyNet, "family", family)
            assert display_name(MyNet(d_model=4))
