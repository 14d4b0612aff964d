"""One call of a step, run eagerly and recorded."""
