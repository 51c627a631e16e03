"""Tasks: what is to be memorized. One file per task; `core.task.Task` is their contract."""
