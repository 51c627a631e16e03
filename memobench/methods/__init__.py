"""Methods: how weights come about. One file per method; `base.Method` says what each offers."""
