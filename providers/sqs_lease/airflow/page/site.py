"""The server of the page's files, and the places where Airflow shows the page.

The files contain no data: they are the same for all users, and are served without a login, like those of Airflow's own
interface. In the browser they ask Airflow's public REST API, with the session of the user who looks at them. So users
see no more on the page than Airflow shows them elsewhere.

Airflow imports its plugins in each of its processes, tasks included. The code that serves files is imported by the
first request, which only an API server gets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from starlette.staticfiles import StaticFiles

FILES: Final = Path(__file__).with_name("static")

URL_PREFIX: Final = "/sqs-lease"

_PAGE: Final = f"{URL_PREFIX.removeprefix('/')}/index.html"  # relative: Airflow may be served below a path
_ICONS: Final = {
    "icon": f"{URL_PREFIX.removeprefix('/')}/icon.svg",
    "icon_dark_mode": f"{URL_PREFIX.removeprefix('/')}/icon-dark.svg",
}

NAVIGATION_VIEW: Final = {
    "name": "SQS leases",
    "href": _PAGE,
    "destination": "nav",
    "category": "browse",
    "url_route": "sqs-leases",
    **_ICONS,
}
"""The page of all batches, in the menu *Browse*."""

RUN_VIEW: Final = {
    "name": "SQS leases",
    "href": f"{_PAGE}?dag_id={{DAG_ID}}&run_id={{RUN_ID}}",
    "destination": "dag_run",
    "url_route": "sqs-leases-of-run",
    **_ICONS,
}
"""The tab of a run; Airflow fills in the run, encoded."""

HEADERS: Final = {
    # Everything comes from this server; nothing is inline, and only Airflow itself may frame it.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    # Browsers ask again each time, so that they get new files after an update; an unchanged file costs a 304.
    "cache-control": "no-cache",
}

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


class LeasesSite:
    """The ASGI application that Airflow mounts at :data:`URL_PREFIX`."""

    def __init__(self) -> None:
        self._files: StaticFiles | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request with a file, or with 404 or 405."""
        from starlette.exceptions import HTTPException
        from starlette.responses import PlainTextResponse
        from starlette.staticfiles import StaticFiles

        if self._files is None:
            self._files = StaticFiles(directory=FILES)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        try:
            await self._files(scope, receive, send_with_headers)
        except HTTPException as error:
            refusal = PlainTextResponse(error.detail, status_code=error.status_code)
            await refusal(scope, receive, send_with_headers)
