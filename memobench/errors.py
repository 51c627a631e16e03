"""The one exception a user's mistake raises. Imports nothing."""


class UserError(ValueError):
    """A mistake in what the user asked for: one line that names the field and the fix."""
