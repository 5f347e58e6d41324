"""Where it runs: launching, the emulated cluster, benchmarks, the main job."""
