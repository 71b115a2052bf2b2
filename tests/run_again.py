"""A test of foreign programs that fails is run once more, alone, when all others are done; the summary says so.

Slurm's daemons, two hosts and the like answer to clocks of their own. Only tests marked `integration` are run again:
any other test that fails has failed.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ALONE = "COURSE_TEST_RUN_AGAIN"
SAYS = "passed only when run again alone"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and ALONE not in os.environ:
        config.pluginmanager.register(RunAgain(config))


class RunAgain:
    """Lives in the process that hears the results of all workers."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.output = config, ""
        self.failed: dict[str, pytest.TestReport] = {}
        self.passed_alone: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and "integration" in report.keywords:
            self.failed[report.nodeid] = report

    @pytest.hookimpl(trylast=True)  # when the workers have ended
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        for test in sorted(self.failed):
            if self._passes_alone(test):
                self.passed_alone.append(test)
        self._forgive(session)

    def _passes_alone(self, test: str) -> bool:
        command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "--tb=short", test]
        done = subprocess.run(
            command, cwd=self.config.rootpath, env=os.environ | {ALONE: "1"}, stdout=subprocess.PIPE, text=True
        )
        self.output += done.stdout
        return done.returncode == 0

    def _forgive(self, session: pytest.Session) -> None:
        """Count what has passed alone apart from what has failed."""
        stats = self.config.pluginmanager.getplugin("terminalreporter").stats
        for kind in ("failed", "error"):
            reports = stats.pop(kind, [])
            if kept := [report for report in reports if report.nodeid not in self.passed_alone]:
                stats[kind] = kept
        if self.passed_alone:
            stats[SAYS] = [self.failed[test] for test in self.passed_alone]
        if session.exitstatus == pytest.ExitCode.TESTS_FAILED and not stats.keys() & {"failed", "error"}:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.failed:
            return
        terminalreporter.section("tests of foreign programs, run again alone")
        terminalreporter.write_line(self.output)
        for test in sorted(self.failed):
            says = SAYS if test in self.passed_alone else "failed again alone"
            terminalreporter.write_line(f"{says}: {test}", yellow=True)
