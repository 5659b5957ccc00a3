"""From valid inputs to a fitted model to placed cells: the only package that knows every stage."""
