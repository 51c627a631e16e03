"""Tasks: what is to be memorized. One file per task; `base.Task` says what each offers."""
