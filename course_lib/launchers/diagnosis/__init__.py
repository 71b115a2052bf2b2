"""Why a launch failed: where each rank is, which collectives it has called, whom it has lost."""
