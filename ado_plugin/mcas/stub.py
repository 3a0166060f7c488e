"""The function whose source is sent to an MCAS server: it imports the plugin installed there and forwards the call.

The server evaluates the source with separate globals and locals, so that nothing outside its body exists except ``ado``, which the
server provides. An exception would reach the client as "-1" only, so every error becomes a reply, and every reply is text.
"""
# ruff: noqa: F821

from __future__ import annotations

__all__ = ["fastomp_slice"]


def fastomp_slice(target, parameters):  # type: ignore[no-untyped-def]
    """Answer one call next to the data; self-contained, because only this source is sent."""
    import json

    try:
        from ado_plugin.mcas.slice import answer

        return answer(target, ado.load, parameters)  # type: ignore[name-defined]
    except BaseException as error:  # an exception that leaves this function ends the server's helper process
        message = f"the server's Python cannot run the plugin ({type(error).__name__}: {error}): run 'fastomp ado install'"
        return json.dumps({"error": {"kind": "UnavailableError", "message": message}})
