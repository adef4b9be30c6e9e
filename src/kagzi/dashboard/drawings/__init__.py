"""Pictures as numbers: where each bar, line and node of an SVG stands. Pure; templates draw them."""
