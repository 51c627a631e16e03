"""Executors: where packs run. Each takes packs and yields them with what training them gave."""
