"""A workshop on one machine: everybody has a JupyterLab with the course, and the class is a service of the Hub.

    npm install --global configurable-http-proxy
    pip install '.[hub]'
    jupyterhub --config docs/deploy/jupyterhub/jupyterhub_config.py

README.md beside this file says what to change first, and what was tested.
"""

import os
import sys
from pathlib import Path

c = get_config()  # noqa: F821

STATE = Path(os.environ.get("COURSE_HUB_STATE", "/srv/course-hub"))  # the Hub's and the class's own files
CLASS_PORT = int(os.environ.get("COURSE_CLASS_PORT", "8899"))
INSTRUCTORS = os.environ.get("COURSE_INSTRUCTORS", "instructor").split()
LEARNERS = os.environ.get("COURSE_LEARNERS", "").split()

# Who may log in. The system's accounts (PAM) are the default; for others see "Authenticators" in JupyterHub's manual.
c.Authenticator.allowed_users = {*INSTRUCTORS, *LEARNERS}

# What each gets: the course's own JupyterLab, on a desk in the home folder.
# A server that nobody uses ends after an hour (idle-culler, below).
c.Spawner.cmd = [sys.executable, "-m", "course_lib.classroom.learner.hub"]
c.Spawner.notebook_dir = ""
c.Spawner.default_url = "/lab"
c.Spawner.start_timeout = 300
c.Spawner.http_timeout = 300
c.JupyterHub.active_server_limit = int(os.environ.get("COURSE_MOST_SERVERS", "0"))  # README.md: how many fit

c.Spawner.environment = {
    "COURSE_CLASS": f"http://127.0.0.1:{CLASS_PORT}/services/class",
    "OMP_NUM_THREADS": "1",  # many people share these cores
}

# The class: instructors open /services/class, learners are in it once their server has started.
c.JupyterHub.load_groups = {"instructors": {"users": INSTRUCTORS}, "learners": {"users": LEARNERS}}
c.JupyterHub.services = [
    {
        "name": "class",
        "url": f"http://127.0.0.1:{CLASS_PORT}",
        "command": [sys.executable, "-m", "course_lib", "class", "--hub", "--record", str(STATE / "class.db")],
        "display": True,
        "oauth_no_confirm": True,
    },
    {
        "name": "idle-culler",
        "command": [sys.executable, "-m", "jupyterhub_idle_culler", "--timeout=3600"],
    },
]
c.JupyterHub.load_roles = [
    # Learners need no access to the service: their servers talk to it with a token.
    {"name": "class-view", "scopes": ["access:services!service=class"], "groups": ["instructors"]},
    {
        "name": "idle-culler",
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
        "services": ["idle-culler"],
    },
]

STATE.mkdir(mode=0o700, parents=True, exist_ok=True)
c.JupyterHub.cookie_secret_file = str(STATE / "cookie_secret")
c.JupyterHub.db_url = f"sqlite:///{STATE / 'jupyterhub.sqlite'}"
c.ConfigurableHTTPProxy.pid_file = str(STATE / "proxy.pid")
