"""What runs in the notebook's process, or whichever one calls `launch`."""
