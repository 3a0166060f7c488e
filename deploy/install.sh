#!/bin/sh
# Installs the embedded pool server into a prefix of its own: a virtual environment and the command.
#
#   deploy/install.sh PREFIX [EXTRAS]      EXTRAS defaults to server; PYTHON names the interpreter (default python3)
#
# Run again it upgrades in place. PIP_ARGS is handed to pip, for example --no-index --find-links DIR where there is no network.
set -eu
prefix=${1:?usage: deploy/install.sh PREFIX [EXTRAS]}
extras=${2-server}
source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$prefix/bin"
test -x "$prefix/venv/bin/python" || "${PYTHON:-python3}" -m venv ${VENV_ARGS:-} "$prefix/venv"
# shellcheck disable=SC2086
"$prefix/venv/bin/python" -m pip install --quiet --upgrade ${PIP_ARGS:-} "$source${extras:+[$extras]}"
ln -sf ../venv/bin/fastomp "$prefix/bin/fastomp"
"$prefix/bin/fastomp" --version
