"""Computing a study: runner, worker, engines, progress, estimates."""
