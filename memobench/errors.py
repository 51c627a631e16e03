"""The exceptions that tell users what to do. Imports nothing."""


class UserError(ValueError):
    """A mistake in what the user asked for: one line that names the field and the fix."""


class DoesNotFit(UserError):
    """A run for which the device has too little memory even alone."""


class Lost(UserError):
    """Runs that could not be trained, though tried again; the others are done."""
