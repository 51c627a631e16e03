"""The command `memobench` in this process, which has imported what each would import again."""

import contextlib
import dataclasses
import io
import logging as standard
import sys
from unittest import mock

from absl import logging
from absl.testing import flagsaver

from memobench.cli import main as cli


@dataclasses.dataclass(frozen=True)
class Done:
    """What `subprocess.run` would say."""

    returncode: int
    stdout: str
    stderr: str


def command_line(*arguments, cwd, out=None):
    """What a command of these arguments, started in a folder, prints, and how it ends.

    out: the stream that takes what it prints.
    """
    out, errors = out or io.StringIO(), io.StringIO()
    line, returncode = ["memobench", *map(str, arguments)], 0
    # Flags that commands define stay.
    cli.find()
    with (
        contextlib.chdir(cwd),
        mock.patch.object(sys, "argv", line),
        flagsaver.flagsaver(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        _logged_to(errors),
    ):
        try:
            cli.main()
        except SystemExit as end:
            # As Python itself ends: a text is printed, and the status is 1.
            told = isinstance(end.code, str)
            returncode = 1 if told else end.code or 0
            errors.write(f"{end.code}\n" if told else "")
    printed = out.getvalue() if isinstance(out, io.StringIO) else ""
    return Done(returncode, printed, errors.getvalue())


@contextlib.contextmanager
def _logged_to(stream):
    """What absl's handler, which the command adds, writes goes to the stream until it ends."""
    handler, level = logging.get_absl_handler(), standard.root.level
    before = handler.python_handler.setStream(stream)
    try:
        yield
    finally:
        standard.root.removeHandler(handler)
        standard.root.setLevel(level)
        handler.python_handler.setStream(before)
