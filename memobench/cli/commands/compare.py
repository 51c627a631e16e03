"""memobench compare: a user's runs beside the published ones."""

from memobench.cli.command import PLUGIN, PRESET, RESULTS, Command, choose
from memobench.common.errors import UserError, suggest


def run(names: list[str]) -> None:
    """Shows your runs beside the published ones of the same configuration, with differences."""
    chosen = [experiment.name for experiment in choose(names)] if names else None
    from memobench.report import compare
    from memobench.store import published
    from memobench.store.results import load_results

    mine, preset = load_results(RESULTS.value), PRESET.value if PRESET.present else None
    known = [name for name, of in published.files().items() if preset in (None, *of)]
    if preset is not None and not known:
        presets = set().union(*published.files().values())
        raise UserError(f"preset={preset!r}: nothing is published of it{suggest(preset, presets)}")
    # A name that is not published is an error, unless others that a pattern matches are.
    wanted = [name for name in chosen or known if name in known] or chosen or []
    of_names = ((name, published.published(name, preset)) for name in wanted)
    if found := [(name, x) for name, x in compare.compare(mine, of_names) if not x.empty]:
        print(compare.page(found))
    else:
        print(f"No run of {RESULTS.value} is of a configuration that is published.")


COMMAND = Command(run, "EXPERIMENT", (PRESET, RESULTS, PLUGIN))
