"""What every room uses: errors, files, registries, settings from JSON and YAML, state as a value, shapes, devices."""
