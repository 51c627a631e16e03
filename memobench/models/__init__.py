"""Architectures: who memorizes. One file per architecture; `base` says what each offers."""
