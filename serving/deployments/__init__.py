"""What runs in replicas. Plain classes; `build.py` alone decorates them."""
