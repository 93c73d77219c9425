"""Where rows come from: one file per database family."""
