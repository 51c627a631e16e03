"""Architectures, the models that memorize: one file each, with its plain definition first."""
