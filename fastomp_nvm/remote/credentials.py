"""The token and the certificates of a connection: given, from the environment, or those of a server of this user."""

from __future__ import annotations

import os
from pathlib import Path

from fastomp_nvm.errors import InputError
from fastomp_nvm.home import local_token_file
from fastomp_nvm.remote.address import ServerURL, is_loopback

__all__ = ["credentials", "local_token"]


def credentials(
    address: ServerURL, token: str | None = None, tls_ca: str | os.PathLike[str] | None = None, *, insecure: bool = False
) -> tuple[str | None, bytes | None]:
    """Return the token, if one is given, and the certificates, in PEM, with which to connect to a server.

    Parameters
    ----------
    address : ServerURL
    token : str, optional
        By default ``FASTOMP_TOKEN``. Without it calls show the token that a server of this user on this machine wrote.
    tls_ca : str or path, optional
        File with the authority of the server's certificate; by default ``FASTOMP_TLS_CA``.
    insecure : bool
        Allow sending the token in clear to another machine.
    """
    local = is_loopback(address.host)
    if address.scheme != "mcas":  # MCAS knows neither tokens nor certificates and refuses them
        token = token or os.environ.get("FASTOMP_TOKEN") or None
        tls_ca = tls_ca or os.environ.get("FASTOMP_TLS_CA")
    if token and not local and address.scheme == "grpc" and not insecure:
        raise InputError(
            f"the token would be sent to {address.host} in clear: use grpc+tls://, or allow it (--insecure) on a safe network"
        )
    try:
        return token, None if tls_ca is None else Path(tls_ca).read_bytes()
    except OSError as error:
        raise InputError(f"the certificates in {tls_ca} cannot be read: {error.strerror}") from error


def local_token(port: int) -> str | None:
    """Return the token that a server of this user wrote for local clients, or None."""
    try:
        return local_token_file(port).read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
