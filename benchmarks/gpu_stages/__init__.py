"""The stages of `benchmarks.gpu`: each module has `cases(settings) -> {name: function that measures}`."""
