"""Checks of users' kinds."""
