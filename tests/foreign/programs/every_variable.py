"""What torchrun sets, a program may read."""

import os


def main():
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK ROLE_RANK ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT"
    return {name: os.environ[name] for name in names.split()}


def check(values):
    size = str(len(values))
    for rank, value in enumerate(values):
        assert (value["RANK"], value["LOCAL_RANK"], value["WORLD_SIZE"]) == (str(rank), str(rank), size)
        assert value["LOCAL_WORLD_SIZE"] == value["ROLE_WORLD_SIZE"] == size
        assert 0 < int(value["MASTER_PORT"]) < 65536
        assert value["MASTER_ADDR"]
