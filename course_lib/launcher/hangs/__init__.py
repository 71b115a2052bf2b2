"""Why a launch failed, from each rank's calls and stack. Read `record`, `call_log`, `deadlock`, `stacks`, `errors`."""
