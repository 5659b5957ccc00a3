"""Stage D (section 3.5): from the geometry of patches, or of all cells at once, to coordinates of cells."""
