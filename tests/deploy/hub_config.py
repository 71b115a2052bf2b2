"""The Hub of docs/deploy/jupyterhub for a test: on loopback, with accounts and homes of its own, and no passwords."""

import os
from pathlib import Path

c = get_config()  # noqa: F821
load_subconfig(os.environ["COURSE_HUB_CONFIG"])  # noqa: F821

FOLDER, PORTS = Path(os.environ["COURSE_HUB_STATE"]), os.environ["COURSE_HUB_PORTS"].split()

c.JupyterHub.authenticator_class = "dummy"
c.JupyterHub.spawner_class = "simple"
c.Authenticator.allowed_users |= {"mallory"}  # may use the Hub, and is not in the class
c.SimpleLocalProcessSpawner.home_dir_template = str(FOLDER / "homes" / "{username}")
c.JupyterHub.bind_url = f"http://127.0.0.1:{PORTS[0]}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{PORTS[1]}"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{PORTS[2]}"
