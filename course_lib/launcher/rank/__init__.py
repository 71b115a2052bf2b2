"""What runs in a rank's process. Read `main`, which uses `lifetime`, `joining` and `stop`."""
