#!/usr/bin/env bash
# The console in headless Chromium, with and without script: `tests/browser/run.sh [PYTEST OPTION...]`, and with
# `tests/browser/run.sh --screenshots FOLDER` pictures of every page, light and dark, at four widths, with their weight. With
# `--picture docs/pictures/console.png` it makes the picture of the README. With `--freshness 50` it measures how soon pages are true after a
# POST.
# Needs a debug build or MPS_MANAGER_BINARY, Debian's chromium-headless-shell (a third faster) or chromium, or MPS_MANAGER_CHROMIUM, Python
# 3.11 with venv, and Node with npm; what it installs stays below the build directory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/clients/installed.sh
target=$(realpath "${CARGO_TARGET_DIR:-target}")
MPS_MANAGER_BINARY=$(realpath "${MPS_MANAGER_BINARY:-$target/debug/mps-manager}")
MPS_MANAGER_CHROMIUM=${MPS_MANAGER_CHROMIUM:-$(command -v chromium-headless-shell || command -v chromium)} || {
    echo "there is no chromium: install Debian's chromium-headless-shell, or name one in MPS_MANAGER_CHROMIUM" >&2
    exit 2
}
AXE=$(node_with tests/browser)/node_modules/axe-core/axe.min.js
export MPS_MANAGER_BINARY MPS_MANAGER_CHROMIUM AXE PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/tests/host

python=$(python_with tests/browser/requirements.txt)/bin/python
if [ "${1:-}" = --screenshots ]; then
    exec "$python" tests/browser/screenshots.py "${2:?a folder for the pictures}"
fi
if [ "${1:-}" = --picture ]; then
    exec "$python" tests/browser/picture.py "${2:?a file for the picture}"
fi
if [ "${1:-}" = --freshness ]; then
    exec "$python" tests/browser/freshness.py "${2:?how often}"
fi
# Four at a time, each on hosts of its own, since most of them wait: a file is one worker's, whose tests share a host. `-n 0` is one
# after the other.
exec "$python" -m pytest -p no:cacheprovider --rootdir tests/browser tests/browser -q -n 4 --dist loadscope "$@"
