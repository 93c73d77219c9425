"""Where exports go: one file per store; stores do not know each other."""
