"""The process of the local MLflow server: `python -m plinth_registry.mlflow_process HOME PORT USERS [WORKSPACE]`.

`mlflow server` loads MLflow in one process to prepare the database, then again in another that answers. This does both
in one, in half the time. With a workspace it asks for a login (`login.server`). It ends when no process has held the
lock USERS for `LINGER_S`: commands that follow each other share one server, and none outlives them.

`PLINTH_MLFLOW_DATABASE` and `PLINTH_MLFLOW_ARTIFACTS` name a database (`postgresql+psycopg2://…`) and a place of
artifacts (`s3://…`) instead of SQLite and a folder. Passwords are libpq's matter (PGPASSFILE), and belong into no URL.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

from plinth.storage.running import wait_until_unused
from plinth_registry.artifact_places import confine

#: Seconds that a server waits for its next user.
LINGER_S = 20.0
HOST, DATABASE, ARTIFACTS = "127.0.0.1", "mlflow.db", "artifacts"
DATABASE_VARIABLE, ARTIFACTS_VARIABLE = "PLINTH_MLFLOW_DATABASE", "PLINTH_MLFLOW_ARTIFACTS"


def stores(home: Path) -> tuple[str, str]:
    """URL of the database and place of the artifacts of the server in a folder."""
    database = os.environ.get(DATABASE_VARIABLE) or f"sqlite:///{home / DATABASE}"
    return database, os.environ.get(ARTIFACTS_VARIABLE) or str(home / ARTIFACTS)


def serve(home: Path, port: int, users: Path, root: Path | None = None) -> None:
    """Prepare the database in a folder and answer on a port of loopback until a signal comes, or nobody uses it.

    Args:
        users: the lock of the processes that use it.
        root: the workspace whose login is asked for; None: everybody may do everything.
    """
    gc.disable()  # what is imported stays
    import uvicorn  # before MLflow, which guards its pages only where it sees a server's package
    from mlflow import environment_variables as variables
    from mlflow.server import constants, handlers

    database, destination = stores(home)
    artifacts = "mlflow-artifacts:/"  # through the server
    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: database,
        constants.REGISTRY_STORE_URI_ENV_VAR: database,
        constants.ARTIFACT_ROOT_ENV_VAR: artifacts,
        constants.ARTIFACTS_DESTINATION_ENV_VAR: destination,
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
        variables._MLFLOW_SGI_NAME.name: "uvicorn",
        variables._MLFLOW_SERVER_BOOT_ID.name: uuid.uuid4().hex,
        variables._MLFLOW_IN_JOB_EXECUTOR.name: "false",
    }
    confine(destination)
    handlers.initialize_backend_stores(database, database, artifacts)
    app = _app(root)
    gc.freeze()
    gc.enable()
    threading.Thread(target=_end_unused, args=(users,), daemon=True).start()
    uvicorn.run(app, host=HOST, port=port)


def _end_unused(users: Path) -> None:
    wait_until_unused(users, LINGER_S)  # the lock is held until this process has ended: a new user starts another
    print(f"no process has used this server for {LINGER_S:g} s", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


def _app(root: Path | None) -> Any:
    if root is not None:
        from plinth_registry.login.server import create_app

        return create_app(root)
    from mlflow.server.fastapi_app import app

    return app


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), *map(Path, sys.argv[3:]))
