"""Programs that comparisons start: ``python -m benchmarks.programs.NAME``, as each describes it. Most print JSON."""
