#!/usr/bin/env bash
# One virtual environment for each PyTorch that wheels bring a runtime for, in a folder that is made anew:
#
#   packaging/environments.sh FOLDER      FOLDER/torch-2.13.0, and FOLDER/torch-2.13.0-cpu where $STOWAGE_TORCH_INDEX names an index of CPU wheels
#
# The Python is that of `python` on the path.
set -euo pipefail
readonly FOLDER=$1
rm -rf "$FOLDER"
mkdir -p "$FOLDER"
make() {
  local place=$FOLDER/$1; shift
  python -m venv "$place"
  "$place/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
  "$place/bin/python" -m pip install --quiet --disable-pip-version-check numpy rich highspy
}
for version in 2.11.0 2.12.1 2.13.0; do
  make "torch-$version" "torch==$version"
  if [[ -n ${STOWAGE_TORCH_INDEX:-} ]]; then make "torch-$version-cpu" --index-url "$STOWAGE_TORCH_INDEX" "torch==$version"; fi
done
