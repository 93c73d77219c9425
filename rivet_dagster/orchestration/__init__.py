"""The only code that imports Dagster."""
