"""Recipes: their sections, how YAML files become them, and the files that come with the package."""
