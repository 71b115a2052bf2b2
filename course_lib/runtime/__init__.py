"""What every process stands on: devices, spans, interrupts, private doors into PyTorch and CPython, files."""
