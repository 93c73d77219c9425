"""Database tables as files people can trust: exports are Dagster assets, their IO managers are the destinations."""
